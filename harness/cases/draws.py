"""What Hypothesis draws for a case: it follows from the seed alone, and every input is a new one.

Two of Hypothesis's habits are switched off, for neither of which there is a public switch:

- It mixes constants that it finds in loaded local modules into its draws. In a checkout the same seed would then draw
  other inputs as soon as one more of our modules is loaded, or a number in one of them changes.
- It tries up to five variations of each input in which drawn parts are copied over others. Four in five of the
  examples that a case may judge would go to near copies, and a cell's examples are few.

A release that has moved what is replaced here loses that, and no more; `tests/harness/cases/test_draws.py` notices.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from unittest.mock import patch

from hypothesis.internal.conjecture import engine, providers

_NO_CONSTANTS = providers.Constants()
_REPLACED = (
    (providers, "_get_local_constants", lambda: _NO_CONSTANTS),
    (engine.ConjectureRunner, "generate_mutations_from", lambda self, data: None),
)


@contextmanager
def seed_alone_decides() -> Iterator[None]:
    """Inside the block equal seeds draw equal inputs, and no two of them are variations of one."""
    providers.CONSTANTS_CACHE.cache.clear()
    with ExitStack() as stack:
        for owner, name, replacement in _REPLACED:
            if hasattr(owner, name):
                stack.enter_context(patch.object(owner, name, replacement))
        yield
    providers.CONSTANTS_CACHE.cache.clear()
