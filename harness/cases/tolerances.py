"""How far two right answers may lie apart: bounds that follow from dtype, length and depth.

The notation is Higham's (Accuracy and Stability of Numerical Algorithms, 2nd ed., ch. 3): u is half the distance from
1 to the next number, and a sum of n terms is off by at most about n·u·Σ|terms|.
"""

from __future__ import annotations

import numpy as np

_MACHINE_EPSILON = {"float64": 2.0**-52, "float32": 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7}
_SMALLEST_NORMAL = {"float64": 2.0**-1022, "float32": 2.0**-126, "float16": 2.0**-14, "bfloat16": 2.0**-126}
_LARGEST = {"float64": np.finfo(np.float64).max, "float32": float(np.finfo(np.float32).max), "float16": 65504.0}
DTYPES = tuple(_MACHINE_EPSILON)


def machine_epsilon(dtype: str) -> float:
    """Distance from 1 to the next number: twice the unit roundoff, so that a count of operations may be rough."""
    return _MACHINE_EPSILON[dtype]


def smallest_normal(dtype: str) -> float:
    """Below it a number loses digits, so no bound may be smaller."""
    return _SMALLEST_NORMAL[dtype]


def largest(dtype: str) -> float:
    """Beyond it a number becomes infinite. bfloat16 reaches about as far as float32."""
    return _LARGEST.get(dtype, _LARGEST["float32"])


def working_dtype(dtype: str) -> str:
    """Losses and log-probs of half-precision inputs are worked on in float32."""
    return "float64" if dtype == "float64" else "float32"


def rounded_to(array: np.ndarray, dtype: str) -> np.ndarray:
    """A float64 array in the type, to nearest even. numpy has no bfloat16: its values travel as float32."""
    with np.errstate(over="ignore"):
        if dtype != "bfloat16":
            return array.astype(dtype)
        single = np.ascontiguousarray(array, dtype=np.float32)
    bits = single.view(np.uint32).astype(np.uint64)
    nearest = ((bits + 0x7FFF + ((bits >> np.uint64(16)) & np.uint64(1))) >> np.uint64(16)) << np.uint64(16)
    return np.where(np.isfinite(single), nearest.astype(np.uint32).view(np.float32), single)


def log_prob_error(dtype: str, *, layers: int, hidden: int, length: int) -> float:
    """How far two forward passes over the same tokens may put a log-prob apart when they sum in another order.

    Each layer sums over `hidden` numbers, whose errors of either sign grow like √hidden, and along the sequence
    (attention's softmax, or a recurrence whose every step rounds the state), which may grow like `length`; the layers
    add up. These sums are kept in float32 at least. What half precision adds is that about eight results a layer are
    rounded when they are stored. Logits of a model worth testing are of size 16 at most.
    """
    summed = machine_epsilon(working_dtype(dtype)) * layers * (np.sqrt(hidden) + length)
    stored = machine_epsilon(dtype) * np.sqrt(8 * layers)
    return float(16 * (summed + stored))


def gradient_error(dtype: str, *, layers: int, hidden: int, length: int, largest_gradient: float) -> float:
    """How far two ways to add up one gradient may put any of its elements apart.

    Every part of it is a probability times something. A probability is off by as much, relatively, as its logarithm is
    absolutely, and so is the gradient relative to its parts. Parts may cancel, so that the gradient itself is no
    measure of them: one token's gradient by a weight next to a normalised layer is of size 1.
    """
    return log_prob_error(dtype, layers=layers, hidden=hidden, length=length) * max(largest_gradient, 1.0)
