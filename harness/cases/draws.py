"""What Hypothesis draws for a case follows from the seed alone, every input is a new one, and shrinking ends in time.

Three of Hypothesis's habits are changed, for none of which there is a public switch:

- It mixes constants that it finds in loaded local modules into its draws. In a checkout the same seed would then draw
  other inputs as soon as one more of our modules is loaded, or a number in one of them changes.
- It tries up to five variations of each input in which drawn parts are copied over others. Four in five of the
  examples that a case may judge would go to near copies, and a cell's examples are few.
- It shrinks for up to five minutes, and says so.

A release that has moved what is replaced here loses that, and no more; `tests/harness/cases/test_draws.py` notices.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from unittest.mock import patch

from hypothesis.internal.conjecture import engine, providers
from hypothesis.reporting import with_reporter

_NO_CONSTANTS = providers.Constants()


@contextmanager
def drawing(*, shrink_seconds: float) -> Iterator[None]:
    """Inside the block equal seeds draw equal inputs, no two of them variations of one, and shrinking is bounded."""
    replaced = (
        (providers, "_get_local_constants", lambda: _NO_CONSTANTS),
        (engine.ConjectureRunner, "generate_mutations_from", lambda self, data: None),
        (engine, "MAX_SHRINKING_SECONDS", shrink_seconds),
    )
    providers.CONSTANTS_CACHE.cache.clear()
    with ExitStack() as stack:
        stack.enter_context(with_reporter(lambda text: None))
        for owner, name, replacement in replaced:
            if hasattr(owner, name):
                stack.enter_context(patch.object(owner, name, replacement))
        yield
    providers.CONSTANTS_CACHE.cache.clear()
