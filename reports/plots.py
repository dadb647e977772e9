"""Plots as inline SVG by matplotlib: no scripts, no links, text that is text, colours that follow the page's theme."""

from __future__ import annotations

import hashlib
import io
import re
from collections.abc import Callable, Sequence
from typing import Any
from xml.etree import ElementTree

import matplotlib
import numpy as np
import pandas as pd
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from reports.text import printable

_INK = "#010203"  # stands for the page's own text colour, which only the page knows
SEED_COLOURS = ("#2f7ed8", "#d9822b", "#8a63d2", "#1f9d8a", "#c2487a", "#7d8b2f", "#6b7785")
_SETTINGS: dict[Any, Any] = {
    "svg.fonttype": "none",  # text stays text: it can be read, searched and styled
    "text.parse_math": False,  # a name with two dollar signs is a name
    "font.family": "sans-serif",
    "font.size": 8,
    "axes.edgecolor": _INK,
    "axes.labelcolor": _INK,
    "xtick.color": _INK,
    "ytick.color": _INK,
    "text.color": _INK,
    "axes.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "axes.formatter.useoffset": False,
}


def seed_lines(table: pd.DataFrame, *, label: str) -> Markup:
    """One metric over the steps: a thin line a seed, and their mean in ink. `table`: rows are steps, columns seeds."""

    def draw(axes: Axes) -> None:
        finite = table.replace([np.inf, -np.inf], np.nan)
        marker = "." if len(table) == 1 else ""
        for place, seed in enumerate(finite.columns):
            axes.plot(
                finite.index,
                finite[seed],
                color=SEED_COLOURS[place % len(SEED_COLOURS)],
                linewidth=1.0,
                alpha=0.75,
                marker=marker,
            )
        if finite.shape[1] > 1:
            axes.plot(finite.index, finite.mean(axis=1), color=_INK, linewidth=1.6, marker=marker)
        axes.grid(axis="y", color=_INK, alpha=0.12, linewidth=0.5)
        axes.locator_params(axis="y", nbins=4)
        if len(table) == 1:
            axes.set_xticks(list(table.index))
        else:
            axes.locator_params(axis="x", nbins=5, integer=True)
        axes.set_xlabel("step", labelpad=1)

    return _svg(draw, inches=(2.9, 1.75), label=label)


def sparkline(values: Sequence[float | None], *, label: str) -> Markup:
    """A line without axes for a table cell; gaps where there is no value."""

    def draw(axes: Axes) -> None:
        heights = [np.nan if value is None else value for value in values]
        axes.plot(range(len(heights)), heights, color=SEED_COLOURS[0], linewidth=1.2, marker=".", markersize=3)
        top = max((value for value in values if value is not None), default=1.0)
        axes.set_ylim(0, top * 1.15 or 1.0)
        axes.axis("off")

    return _svg(draw, inches=(1.1, 0.26), label=label)


def _svg(draw: Callable[[Axes], None], *, inches: tuple[float, float], label: str) -> Markup:
    salt = hashlib.sha256(label.encode("utf-8", "replace")).hexdigest()[:8]
    with matplotlib.rc_context({**_SETTINGS, "svg.hashsalt": salt}):
        figure = Figure(figsize=inches, layout="constrained")
        figure.patch.set_alpha(0)
        axes = figure.add_subplot()
        axes.patch.set_alpha(0)
        draw(axes)
        drawn = io.StringIO()
        figure.savefig(drawn, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    return _inline(drawn.getvalue(), label=label, prefix=f"p{salt}-")


def _inline(document: str, *, label: str, prefix: str) -> Markup:
    """Make an SVG document an element of an HTML page: no name spaces, no style sheet, ids that are its own."""
    root = ElementTree.fromstring(document)  # what matplotlib has just written
    for element in root.iter():
        element.tag = _local(element.tag)
        for name, value in list(element.attrib.items()):
            del element.attrib[name]
            element.attrib[_local(name)] = _own(_local(name), value, prefix)
    for parent in list(root.iter()):
        for child in [child for child in parent if child.tag in ("metadata", "style")]:
            parent.remove(child)
    _, _, width, height = root.attrib["viewBox"].split()
    root.attrib.clear()
    root.attrib.update(
        {"viewBox": f"0 0 {width} {height}", "role": "img", "aria-label": printable(label), "class": "plot"}
    )
    return Markup(ElementTree.tostring(root, encoding="unicode"))


def _local(name: str) -> str:
    return name.rpartition("}")[2]


def _own(name: str, value: str, prefix: str) -> str:
    if name == "id":
        return prefix + value
    if name == "href":
        return value.replace("#", f"#{prefix}", 1)
    value = value.replace("url(#", f"url(#{prefix}").replace(_INK, "currentColor")
    return re.sub(r"font-family: [^;]*; ", "", value)  # the page's own
