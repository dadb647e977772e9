"""What the harness knows of one pure function of a trainer: inputs worth trying, the right answer, the error allowed.

A function takes arrays by name and settings, and returns outputs by name and the gradient of Σ `value` by input name.
The reference's conventions are settings here (the bound on a log-ratio, the deviation's ddof and eps, what an empty row
or a singleton group counts), so that another convention is another setting and not a failure.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from hypothesis import strategies as st

Arrays = Mapping[str, np.ndarray]
Settings = Mapping[str, Any]
LOG_RATIO_BOUND = 20.0
ANYTHING = np.inf  # the error allowed where the right answer hangs on a rounding


@dataclass(frozen=True, kw_only=True)
class Quantity:
    """A right answer and the error allowed to each element."""

    value: np.ndarray
    error: np.ndarray


@dataclass(frozen=True, kw_only=True)
class Expected:
    """Right answers by name; gradients are of Σ `value` by input name."""

    outputs: Mapping[str, Quantity]
    gradients: Mapping[str, Quantity] = field(default_factory=dict)


Expect = Callable[[Arrays, Settings, float], Expected]


@dataclass(frozen=True, kw_only=True)
class Function:
    """`inputs` draws `{"shape": …, "settings": …, "inputs": {name: nested lists}}`.

    Inputs of several shapes have `{name: shape}` there.

    `expect(inputs, settings, eps)` takes float64 inputs and the machine epsilon that the function works in.
    """

    inputs: st.SearchStrategy[dict[str, Any]]
    expect: Expect
    stores_half: bool = False  # results on the way are rounded to the inputs' type, whose epsilon `expect` is given
