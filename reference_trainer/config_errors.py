"""A wrong configuration told in one sentence: key path, value, remedy."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Any, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails


class ConfigError(ValueError):
    """The configuration names something that does not exist or contradicts itself. `str(error)` is one sentence."""


def nearest_name(value: object, known: Iterable[str]) -> str:
    """The nearest of the known names as a remedy, or all of them when none is near."""
    names = list(known)
    close = difflib.get_close_matches(str(value), names, n=1, cutoff=0.5)
    return f'did you mean "{close[0]}"?' if close else "known: " + ", ".join(names)


def first_problem(error: ValidationError, model: type[BaseModel]) -> str:
    """One sentence about the first thing that is wrong with the data of `model`.

    An unknown key comes before a missing one: the missing key is most often the misspelt one.
    """
    problems = error.errors(include_url=False)
    problem = next((p for p in problems if p["type"] in ("extra_forbidden", "invalid_key")), problems[0])
    path = [str(part) for part in problem["loc"]]
    key = ".".join(path)
    match problem["type"]:
        case "extra_forbidden":
            remedy = nearest_name(path[-1], _fields_at(model, path[:-1]))
            return f'unknown key "{key}" (value {problem["input"]!r}); {remedy}'
        case "missing" if path[-1].isdigit():  # an item of a sequence
            return f'"{".".join(path[:-1])}" is {_shown(problem["input"])}; it should have more items'
        case "too_long":
            return f'"{key}" is {_shown(problem["input"])}; it should have fewer items'
        case "too_short":
            return f'"{key}" is {_shown(problem["input"])}; it should have more items'
        case "missing":
            return f'"{key}" is missing; {_description(model, path)}'
        case "model_type":
            return f'"{key}" is {_shown(problem["input"])}; it should be a mapping'
        case "invalid_key":
            return f'key {path[-1]} of "{".".join(path[:-1])}" should be text'
        case "literal_error":
            return _unknown_choice(model, path, problem)
        case "value_error" if isinstance(problem["input"], dict | BaseModel):
            return str(problem["ctx"]["error"])  # a rule over several keys: its text names them
        case _:
            said = problem["msg"].removeprefix("Value error, ").removeprefix("Input ")
            return f'"{key}" is {_shown(problem["input"])}; it {said}'


def _unknown_choice(model: type[BaseModel], path: list[str], problem: ErrorDetails) -> str:
    field = _section(model, path[:-1]).model_fields[path[-1]]
    choices = [str(choice) for choice in _literals(field.annotation)]
    return f'"{".".join(path)}" is {_shown(problem["input"])}; {nearest_name(problem["input"], choices)}'


def _literals(annotation: Any) -> list[Any]:
    """Every literal inside an annotation: `Literal["a"] | None` gives `["a"]`."""
    found: list[Any] = []
    for argument in get_args(annotation):
        found += _literals(argument) if get_args(argument) else [argument]
    return [item for item in found if not isinstance(item, type)]


def _section(model: type[BaseModel], path: list[str]) -> type[BaseModel]:
    for part in path:
        inner = model.model_fields[part].annotation
        assert isinstance(inner, type)
        assert issubclass(inner, BaseModel)
        model = inner
    return model


def _fields_at(model: type[BaseModel], path: list[str]) -> list[str]:
    return list(_section(model, path).model_fields)


def _description(model: type[BaseModel], path: list[str]) -> str:
    """What the missing key is for: its own line of documentation."""
    described = _section(model, path[:-1]).model_fields[path[-1]].description or "give it a value"
    return described[0].lower() + described[1:].rstrip(".")


def _shown(value: Any) -> str:
    """A value as a person wrote it, cut to a readable length."""
    text = f'"{value}"' if isinstance(value, str) else repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
