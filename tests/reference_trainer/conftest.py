from __future__ import annotations

from hypothesis import settings

# A busy machine is slow, not wrong: the first example of a test may wait for an import.
settings.register_profile("reference_trainer", deadline=None)
settings.load_profile("reference_trainer")
