"""Seeds of everything random, derived from the run's one seed."""

from __future__ import annotations

import hashlib


def derive_seed(root: int, *names: int | str) -> int:
    """A 63-bit seed for the thing that `names` point at: `derive_seed(0, "rollout", step, row)`.

    A hash, because sums of seeds and indices collide: step 1 of seed 0 must not draw what step 0 of seed 1 draws.
    """
    text = "/".join(str(part) for part in (root, *names))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1
