"""`pytest --matrix smoke`: cells × cases as pytest items, the same that `rl-gauntlet run` runs.

The suite's YAML file is the collected file, a cell is a collector in it and a case is an item, so that node ids, `-k`
and JUnit work as ever. Under xdist a cell stays on one worker. The controller writes the bundle.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from harness.errors import UserError

if TYPE_CHECKING:
    from harness.execution.nursery import Nursery
    from harness.execution.session import CellSession
    from harness.matrix.plan import Plan
    from harness.results.bundle import BundleWriter
    from harness.results.records import PlannedCase, PlannedCell, Record

_RECORDS = "rl_gauntlet_records"  # attribute of a report that carries an item's records to the controller


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("rl-gauntlet", "cells of a matrix as tests")
    group.addoption("--matrix", metavar="SUITE", help="run the cells of this suite (a name, or a YAML file)")
    group.addoption("--matrices", metavar="FOLDER", help="where hardware, models, algorithms and suites lie")
    group.addoption("--gauntlet-profile", default="pr", help="pr, nightly or weekly (default: pr)")
    group.addoption("--gauntlet-bundle", metavar="FOLDER", help="where the records go (default: bundles/RUN_ID)")


def pytest_configure(config: pytest.Config) -> None:
    if not config.getoption("--matrix"):
        return
    try:
        config.pluginmanager.register(_Matrix(config), "rl-gauntlet-matrix")
    except UserError as error:
        raise pytest.UsageError(str(error)) from None


class _Matrix:
    """All that happens when a matrix was asked for."""

    def __init__(self, config: pytest.Config) -> None:
        from harness.cases.registry import all_cases
        from harness.execution.header import new_run_id
        from harness.execution.preparation import Request, prepare
        from harness.matrix.load import MATRICES, suite_path
        from harness.matrix.plan import make_plan
        from harness.matrix.selection import Selection
        from harness.results import paths

        suite = config.getoption("--matrix")
        folder = Path(config.getoption("--matrices") or MATRICES)
        self.config = config
        self.path = suite_path(suite, folder).resolve()
        self.cases = all_cases()
        self.plan: Plan = make_plan(suite, Selection(), cases=self.cases, folder=folder)
        inputs: dict[str, Any] = getattr(config, "workerinput", {})
        self.run_id: str = inputs.get("rl_gauntlet_run_id") or new_run_id()
        self.profile: str = config.getoption("--gauntlet-profile")
        self.bundle = Path(
            inputs.get("rl_gauntlet_bundle")
            or config.getoption("--gauntlet-bundle")
            or paths.bundle_folder(self.run_id).absolute()
        )
        workers: Any = os.environ.get("PYTEST_XDIST_WORKER_COUNT") or config.getoption("numprocesses", None) or 1
        self.workers = int(workers)
        request = Request(
            profile=self.profile,
            workers=self.workers,
            seed=inputs.get("rl_gauntlet_seed"),
            matrices=config.getoption("--matrices"),
        )
        _, self.settings = prepare(self.plan, request, cases=self.cases, run_id=self.run_id, folder=self.bundle)
        self._nursery: Nursery | None = None
        self._writer: BundleWriter | None = None
        self._records: list[Record] = []
        self._ask_for_the_suite()

    def _ask_for_the_suite(self) -> None:
        """Without paths on the command line collect the suite alone; with paths collect it beside them.

        In xdist's workers too: they are handed the words of the command line and not what became of them here.
        """
        args = self.config.args if self.config.args_source is pytest.Config.ArgsSource.ARGS else []
        if not any(Path(arg.partition("::")[0]).resolve() == self.path for arg in args):
            args = [*args, str(self.path)]
        self.config.args = args

    @property
    def nursery(self) -> Nursery:
        """Started at the first case, in the process that runs it."""
        if self._nursery is None:
            from harness.execution.nursery import Nursery

            self._nursery = Nursery(threads=self.settings.limits.threads)
        return self._nursery

    @pytest.hookimpl
    def pytest_collect_file(self, file_path: Path, parent: pytest.Collector) -> pytest.Collector | None:
        if file_path.resolve() == self.path:
            return SuiteFile.from_parent(parent, path=file_path, matrix=self)
        return None

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_make_scheduler(self, config: pytest.Config, log: Any) -> Any:
        from xdist.scheduler import LoadScopeScheduling

        return LoadScopeScheduling(config, log)  # a scope is the collector of an item: its cell

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        node.workerinput["rl_gauntlet_run_id"] = self.run_id
        node.workerinput["rl_gauntlet_bundle"] = str(self.bundle)
        node.workerinput["rl_gauntlet_seed"] = self.settings.seed

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
        report = yield
        if isinstance(item, CaseItem) and call.when == "call":
            setattr(report, _RECORDS, [record.model_dump(mode="json") for record in item.records])
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """In the controller, or in the only process there is: write down what an item recorded."""
        if hasattr(self.config, "workerinput"):
            return
        from harness.results.records import RECORD

        for body in getattr(report, _RECORDS, ()):
            record = RECORD.validate_python(body)
            self._records.append(record)
            self._open_bundle().append(record)

    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        if self._nursery is not None:
            self._nursery.close()
            self._nursery = None
        if self._writer is not None:
            self._writer.finish(int(exitstatus))

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        if self._writer is not None:
            terminalreporter.write_line(f"bundle: {self.bundle}")

    def _open_bundle(self) -> BundleWriter:
        if self._writer is None:
            from harness.execution.header import new_header
            from harness.results.bundle import BundleWriter

            header = new_header(
                self.plan,
                run_id=self.run_id,
                profile=self.profile,
                seed=self.settings.seed,
                workers=self.workers,
                threads_per_worker=self.settings.limits.threads,
                command=sys.argv,
            )
            self._writer = BundleWriter(self.bundle, header)
        return self._writer


class SuiteFile(pytest.File):
    """The suite's YAML file."""

    matrix: _Matrix

    @classmethod
    def from_parent(cls, parent: Any, *, matrix: _Matrix, **rest: Any) -> SuiteFile:  # type: ignore[override]
        node: SuiteFile = super().from_parent(parent, **rest)
        node.matrix = matrix
        return node

    def collect(self) -> Iterator[CellCollector]:
        for planned in self.matrix.plan.cells:
            yield CellCollector.from_parent(self, name=planned.cell, matrix=self.matrix, planned=planned)


class CellCollector(pytest.Collector):
    """One cell. Its session, with its child, lives while items of the cell run."""

    matrix: _Matrix
    planned: PlannedCell
    current: list[Record]  # what the item that runs now has recorded
    _session: CellSession | None

    @classmethod
    def from_parent(cls, parent: Any, *, matrix: _Matrix, planned: PlannedCell, **rest: Any) -> CellCollector:  # type: ignore[override]
        node: CellCollector = super().from_parent(parent, **rest)
        node.matrix, node.planned, node.current, node._session = matrix, planned, [], None
        return node

    def collect(self) -> Iterator[CaseItem]:
        for case in self.planned.cases:
            yield CaseItem.from_parent(self, name=case.case, planned=case)

    def session_for(self, records: list[Record]) -> CellSession:
        """The cell's session; until the next call what its cases record on the way goes to `records`."""
        self.current = records
        if self._session is None:
            from harness.execution.local import CellWork, session_of

            work = CellWork(cell=self.matrix.plan.by_id[self.planned.cell], planned=self.planned, cases=())
            self._session = session_of(
                self.matrix.nursery, work, self.matrix.settings, on_step=lambda step: self.current.append(step)
            )
        return self._session

    def teardown(self) -> None:
        if self._session is not None:
            self._session.close()
            self._session = None


class CaseFailedError(Exception):
    """Carries a record to pytest's report of a failure."""


class CaseItem(pytest.Item):
    """One case in one cell."""

    parent: CellCollector
    planned: PlannedCase
    records: list[Record]

    @classmethod
    def from_parent(cls, parent: Any, *, planned: PlannedCase, **rest: Any) -> CaseItem:  # type: ignore[override]
        node: CaseItem = super().from_parent(parent, **rest)
        node.planned, node.records = planned, []
        return node

    def runtest(self) -> None:
        from harness.execution.local import asked_of
        from harness.results.vocabulary import Outcome, PlanState

        cell = self.parent
        if cell.planned.evidence is None:
            pytest.skip(f"cannot run here: {cell.planned.reason}")
        if self.planned.state is not PlanState.RUN:
            pytest.skip(f"{self.planned.state}: {self.planned.reason}")
        matrix = cell.matrix
        case = matrix.cases[self.planned.case]
        asked = asked_of(case, matrix.plan.by_id[cell.planned.cell], matrix.settings)
        attempts = cell.session_for(self.records).run(asked)
        self.records.extend(attempts)
        last = attempts[-1]
        for axis, value in cell.planned.axes.items():
            self.user_properties.append((axis, value))
        self.user_properties += [("seed", last.seed), ("examples", last.examples), ("flags", ",".join(last.flags))]
        if last.outcome is not Outcome.PASSED:
            ending = f"{last.outcome} ({last.failure_class}): {last.message}"
            raise CaseFailedError(f"{ending}\nagain: {last.reproduce}\n{last.detail}".rstrip())

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        if isinstance(excinfo.value, CaseFailedError):
            return str(excinfo.value)
        return super().repr_failure(excinfo, style)

    def reportinfo(self) -> tuple[Path, int | None, str]:
        return self.path, None, f"{self.name} in {self.parent.name}"
