"""Templates filled in so that a forgotten filter is safe: every value is escaped for where it lands."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from reports import text

_TEMPLATES = Path(__file__).parent / "templates"


def render_markdown(template: str, **values: Any) -> str:
    """Fill in a Markdown template."""
    environment = _environment(autoescape=False, finalize=_safe_in_markdown)
    environment.filters.update(code=text.code, block=text.block)
    return environment.get_template(template).render(**values)


def render_html(template: str, **values: Any) -> str:
    """Fill in an HTML template."""
    environment = _environment(autoescape=True, finalize=_safe_in_html)
    environment.filters["breakable"] = _breakable
    return environment.get_template(template).render(**values)


def _environment(**options: Any) -> Environment:
    environment = Environment(
        loader=FileSystemLoader(_TEMPLATES),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        **options,
    )
    environment.filters.update(
        size=text.size,
        seconds=text.seconds,
        number=text.number,
        plural=text.plural,
        one_line=text.one_line,
        spark=text.spark,
    )
    return environment


def _breakable(name: str) -> Markup:
    """A path-like name that a narrow column may break after each slash."""
    return Markup("/<wbr>").join(escape(part) for part in text.printable(name).split("/"))


def _safe_in_markdown(value: Any) -> Any:
    return text.markdown(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def _safe_in_html(value: Any) -> Any:
    return text.printable(value) if isinstance(value, str) and not isinstance(value, Markup) else value
