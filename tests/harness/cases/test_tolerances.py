from __future__ import annotations

import numpy as np
import pytest
import torch

from harness.cases.tolerances import rounded_to


def test_bfloat16_is_rounded_as_torch_rounds_it() -> None:
    random = np.random.default_rng(0)
    array = np.concatenate([random.normal(size=1000) * 10.0 ** random.integers(-20, 20, 1000), [0.0, -0.0, np.inf]])
    expected = torch.from_numpy(array).float().bfloat16().double().numpy()
    assert rounded_to(array, "bfloat16").astype(np.float64).tolist() == expected.tolist()
    assert np.isnan(rounded_to(np.array([np.nan]), "bfloat16")).all()


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_numpy_types_are_their_own(dtype: str) -> None:
    assert rounded_to(np.array([1e30]), dtype).dtype == dtype
