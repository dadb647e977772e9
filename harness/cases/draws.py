"""Makes what Hypothesis draws follow from the seed alone.

Hypothesis mixes constants that it finds in loaded local modules into its draws. In a checkout the same seed would then
draw other inputs as soon as one more of our modules is loaded, or a number in one of them changes. There is no public
switch for it; `tests/harness/cases/test_draws.py` notices when a new release moves what is replaced here.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

from hypothesis.internal.conjecture import providers

_NO_CONSTANTS = providers.Constants()


@contextmanager
def seed_alone_decides() -> Iterator[None]:
    """Keep the constants of loaded modules out of what is drawn inside the block."""
    providers.CONSTANTS_CACHE.cache.clear()
    with patch.object(providers, "_get_local_constants", lambda: _NO_CONSTANTS):
        yield
    providers.CONSTANTS_CACHE.cache.clear()
