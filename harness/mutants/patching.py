"""Puts a defective function wherever the reference trainer holds the sound one.

`from x import f` copies a name, so that replacing `x.f` alone would leave its importers sound: every module of the
trainer is searched, and the registries (dictionaries) at the top of each.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

_PACKAGE = "reference_trainer"
_inert: ContextVar[Callable[[], None] | None] = ContextVar("inert mutant's hit counter", default=None)


@contextmanager
def inert(hit: Callable[[], None]) -> Iterator[None]:
    """Inside the block a replacement only counts: the sound code goes on running."""
    token = _inert.set(hit)
    try:
        yield
    finally:
        _inert.reset(token)


def replace_everywhere(original: Callable[..., Any], replacement: Callable[..., Any]) -> int:
    """Rebind `original` to `replacement` in every loaded module of the trainer; return in how many places.

    Raises LookupError when it is bound nowhere: the mutant has outlived what it breaks.
    """
    bound = _armed(original, replacement)
    places = [(vars(module), name) for module in _modules() for name in vars(module)]
    places += [(holder[name], key) for holder, name in places if isinstance(holder[name], dict) for key in holder[name]]
    count = 0
    for holder, name in places:
        if holder[name] is original:
            holder[name] = bound
            count += 1
    if not count:
        raise LookupError(f"{original!r} is bound nowhere in {_PACKAGE}; the mutant has nothing to break")
    return count


def replace_method(owner: type, name: str, replacement: Callable[..., Any]) -> None:
    """Rebind a method of one of the trainer's classes. Raises LookupError when the class does not define it."""
    if name not in vars(owner):
        raise LookupError(f"{owner.__name__} defines no {name}; the mutant has nothing to break")
    original = vars(owner)[name]
    if not isinstance(original, staticmethod):
        setattr(owner, name, _armed(original, replacement))
    else:
        setattr(owner, name, staticmethod(_armed(original.__func__, replacement)))


def _modules() -> list[Any]:
    return [
        module
        for name, module in list(sys.modules.items())
        if module is not None and (name == _PACKAGE or name.startswith(_PACKAGE + "."))
    ]


def _armed(original: Callable[..., Any], replacement: Callable[..., Any]) -> Callable[..., Any]:
    hit = _inert.get()
    if hit is None:
        return functools.wraps(original)(replacement)

    @functools.wraps(original)
    def only_counts(*args: Any, **kwargs: Any) -> Any:
        hit()
        return original(*args, **kwargs)

    return only_counts
