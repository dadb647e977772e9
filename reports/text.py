"""Text from records made fit to be shown: nothing in it can act on the page, the terminal or the Markdown around it."""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Sequence

from markupsafe import Markup

NOT_MEASURED = "not measured"

_MARKDOWN = re.compile(r"[\\`*\[\]|~$]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])|(?<=:)//")


def printable(text: str) -> str:
    """Show control characters, direction overrides and lone surrogates as escapes; keep line breaks."""
    if text.isprintable():
        return text
    return "".join(one if one == "\n" or not _acts(one) else one.encode("unicode_escape").decode() for one in text)


def _acts(one: str) -> bool:
    return unicodedata.category(one) in ("Cc", "Cf", "Cs", "Zl", "Zp")


def one_line(text: str, limit: int = 300) -> str:
    """Collapse white space and cut what is longer than `limit` characters."""
    line = printable(" ".join(text.split()))
    return line if len(line) <= limit else line[: limit - 1] + "…"


def markdown(text: str) -> Markup:
    """Escape what Markdown or HTML would act on; fits a table cell."""
    line = printable(re.sub(r"\s+", " ", text)).replace("&", "&amp;").replace("<", "&lt;")
    return Markup(_MARKDOWN.sub(lambda found: "\\" + found.group(), line))


def code(text: str, limit: int = 300) -> Markup:
    """A code span, also inside a table."""
    line = one_line(text, limit)
    fence = "`" * (_longest_run(line) + 1)
    padding = " " if line.startswith("`") or line.endswith("`") or not line.strip() else ""
    return Markup(f"{fence}{padding}{line}{padding}{fence}".replace("|", "\\|"))


def block(text: str, language: str = "") -> Markup:
    """A fenced code block. The text is kept whole: a command must stay one that runs."""
    shown = printable(text).strip("\n")
    fence = "`" * max(3, _longest_run(shown) + 1)
    return Markup(f"{fence}{language}\n{shown}\n{fence}")


def _longest_run(text: str) -> int:
    return max((len(run) for run in re.findall("`+", text)), default=0)


def size(count: float | None) -> str:
    """Bytes for a reader: `700 MiB`.

    >>> size(734003200), size(1536), size(None)
    ('700 MiB', '1.5 KiB', 'not measured')
    """
    if count is None or not math.isfinite(count):
        return NOT_MEASURED
    unit = "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if abs(count) < 1024:
            break
        count, unit = count / 1024, larger
    return f"{count:.3g} {unit}" if count < 1000 else f"{count:.0f} {unit}"


def seconds(duration: float | None) -> str:
    """A duration for a reader.

    >>> seconds(0.0021), seconds(3.25), seconds(200), seconds(None)
    ('2.1 ms', '3.2 s', '3 min 20 s', 'not measured')
    """
    if duration is None or not math.isfinite(duration):
        return NOT_MEASURED
    if duration < 1:
        return f"{duration * 1000:.2g} ms" if duration < 0.1 else f"{duration * 1000:.0f} ms"
    if duration < 120:
        return f"{duration:.1f} s"
    minutes, rest = divmod(round(duration), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"


def number(value: float | None) -> str:
    """A metric for a reader; a number that is not finite stays visible.

    >>> number(0.12345), number(3e-06), number(float("nan")), number(None)
    ('0.123', '3e-06', 'nan', 'not measured')
    """
    return NOT_MEASURED if value is None else f"{value:.3g}"


def spark(values: Sequence[float], width: int = 12) -> str:
    """A curve of at most `width` characters, lowest to highest of its own range; a blank where nothing is finite.

    >>> spark([0, 1, 2, 3]), spark([1, float("nan"), 1])
    ('▁▃▆█', '▁ ▁')
    """
    count = min(width, len(values))
    parts = [values[place * len(values) // count : (place + 1) * len(values) // count] for place in range(count)]
    kept = [[value for value in part if math.isfinite(value)] for part in parts]
    means = [sum(part) / len(part) if part else None for part in kept]
    finite = [mean for mean in means if mean is not None]
    low, span = min(finite, default=0.0), max(finite, default=0.0) - min(finite, default=0.0)
    levels = [None if mean is None else round((mean - low) / span * 7) if span else 0 for mean in means]
    return "".join(" " if level is None else "▁▂▃▄▅▆▇█"[level] for level in levels)


def plural(count: int, noun: str) -> str:
    """
    >>> plural(1, "cell"), plural(0, "cell"), plural(2, "case")
    ('1 cell', '0 cells', '2 cases')
    """
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
