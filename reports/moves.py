"""What moved between two weeks, and what was left open."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date

from harness.results.summary import CaseStatus
from harness.results.vocabulary import Outcome, Verdict
from reports.judged import CellKey, CellState, JudgedRun, key_of

States = Mapping[CellKey, CellState]


@dataclass(frozen=True, kw_only=True)
class Flip:
    """A cell whose verdict, or whose failing cases, are not what they were."""

    key: CellKey
    before: Verdict
    after: Verdict
    broke: tuple[str, ...]  # cases that fail now and did not
    mended: tuple[str, ...]  # cases that failed and pass now

    @property
    def worse(self) -> bool:
        order = list(Verdict)  # worst first
        return order.index(self.after) < order.index(self.before) or (self.after == self.before and bool(self.broke))


@dataclass(frozen=True, kw_only=True)
class Change:
    """Something of the surroundings that is not what it was: a version, a machine."""

    what: str
    before: str
    after: str


@dataclass(frozen=True, kw_only=True)
class Moves:
    flips: tuple[Flip, ...]
    gained: tuple[CellKey, ...]
    lost: tuple[CellKey, ...]
    surroundings: tuple[Change, ...]

    @property
    def any(self) -> bool:
        return bool(self.flips or self.gained or self.lost or self.surroundings)


@dataclass(frozen=True, kw_only=True)
class OpenItem:
    """A case that fails in the last word on its cell, and since which night it has."""

    state: CellState
    status: CaseStatus
    run: JudgedRun
    since: date
    nights: int  # on which it failed, in a row


@dataclass(frozen=True, kw_only=True)
class Promise:
    """What was open at the end of the previous week, and what became of it."""

    cell: str
    case: str
    became: str  # "mended", "still open" or "not measured"


def moves(before: States, after: States, *, runs_before: Sequence[JudgedRun], runs_after: Sequence[JudgedRun]) -> Moves:
    """Compare the last words of two weeks, worse flips first."""
    flips = [_flip(before[key], state) for key, state in after.items() if key in before]
    return Moves(
        flips=tuple(sorted((flip for flip in flips if flip is not None), key=lambda flip: not flip.worse)),
        gained=tuple(key for key in after if key not in before),
        lost=tuple(key for key in before if key not in after),
        surroundings=_surroundings(runs_before, runs_after),
    )


def _flip(before: CellState, after: CellState) -> Flip | None:
    passing = {status.case for status in after.summary.cases if status.outcome is Outcome.PASSED}
    broke = tuple(case for case in after.failing if case not in before.failing)
    mended = tuple(case for case in before.failing if case in passing)
    if before.verdict == after.verdict and not broke and not mended:
        return None
    return Flip(key=after.key, before=before.verdict, after=after.verdict, broke=broke, mended=mended)


def _surroundings(before: Sequence[JudgedRun], after: Sequence[JudgedRun]) -> tuple[Change, ...]:
    """Versions and machines that the last runs of the two weeks do not have in common."""
    if not before or not after:
        return ()
    was, now = before[-1].bundle.header, after[-1].bundle.header
    changes = [
        Change(what=name, before=was.versions.get(name, "absent"), after=now.versions.get(name, "absent"))
        for name in sorted(was.versions.keys() | now.versions.keys())
    ]
    machines = [
        ", ".join(sorted({run.bundle.header.machine.machine_class for run in runs})) for runs in (before, after)
    ]
    changes.append(Change(what="machines", before=machines[0], after=machines[1]))
    return tuple(change for change in changes if change.before != change.after)


def open_items(after: States, runs: Sequence[JudgedRun]) -> list[OpenItem]:
    """What fails now, the longest open first. `runs` reach back as far as `since` is to be looked for."""
    items = []
    for state in after.values():
        for status in state.failing.values():
            if status.shared_with is None:
                nights = _nights_in_a_row(state, status.case, runs)
                items.append(
                    OpenItem(
                        state=state, status=status, run=state.run_of[status.case], since=nights[0], nights=len(nights)
                    )
                )
    return sorted(items, key=lambda item: (item.since, item.state.key.cell, item.status.case))


def promises(before: States, after: States) -> list[Promise]:
    """What became of the items that the previous week left open."""
    kept = []
    for key, state in before.items():
        for case, status in state.failing.items():
            if status.shared_with is None:
                kept.append(Promise(cell=key.cell, case=case, became=_became(case, after.get(key))))
    return kept


def _became(case: str, state: CellState | None) -> str:
    for status in state.summary.cases if state is not None else ():
        if status.case == case and status.failed:
            return "still open"
        if status.case == case and status.positive:
            return "mended"
    return "not measured"


def _nights_in_a_row(state: CellState, case: str, runs: Sequence[JudgedRun]) -> list[date]:
    """Days on which `case` failed in this cell without passing in between, oldest first."""
    nights: list[date] = []
    for run in runs:
        for cell in run.summary.cells:
            if key_of(cell) != state.key:
                continue
            status = next((one for one in cell.cases if one.case == case), None)
            if status is not None and status.failed:
                nights.append(run.started.date())
            elif status is not None and status.outcome is Outcome.PASSED:
                nights.clear()
    return list(dict.fromkeys(nights))
