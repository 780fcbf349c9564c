"""Squared lengths, compiled and not."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedveil.core import native
from fedveil.core.native import BLOCK, squared_rows


@pytest.fixture(params=["compiled", "plain"])
def way(request, monkeypatch):
    if request.param == "plain":
        monkeypatch.setattr(native, "kernel", None)
    elif native.kernel is None:
        pytest.skip("the kernel was not compiled")


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("shape", [(0, 3), (3, 0), (1, 1), (5, 17), (2, BLOCK + 5)])
def test_lengths_are_those_of_float64(shape):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(shape, generator=generator) * 1e20  # squares that float32 does not hold
    right = x.double().square().sum(1)
    for rows in (x, x.double(), x.mT.contiguous().mT):
        found = squared_rows(rows)
        assert found.dtype == torch.float64
        assert torch.allclose(found, right, rtol=1e-14, atol=0)


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("columns", [1, 40, BLOCK])
def test_what_is_not_finite_stays_in_its_row(columns):
    x = torch.ones(3, columns)
    x[0, 0], x[1, columns // 2] = float("inf"), float("nan")
    assert torch.isfinite(squared_rows(x)).tolist() == [False, False, True]


@given(rows=st.integers(1, 4), columns=st.integers(1, 70), scale=st.floats(1e-18, 1e18))
def test_the_kernel_equals_torch(rows, columns, scale):
    x = torch.randn(rows, columns, generator=torch.Generator().manual_seed(rows * columns)) * scale
    right = torch.linalg.vector_norm(x, dim=1, dtype=torch.float64).square()
    assert torch.allclose(squared_rows(x), right, rtol=1e-13, atol=0)


def test_the_kernel_refuses_what_does_not_fit():
    if native.kernel is None:
        pytest.skip("the kernel was not compiled")
    wide, narrow = np.zeros(4), np.zeros(4, dtype=np.float32)
    for out, x in ((narrow, narrow), (wide, wide), (wide[:3], narrow), (wide[:0], narrow)):
        with pytest.raises(ValueError, match="squares"):
            native.kernel.squares(out, x)
