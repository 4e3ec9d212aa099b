"""The kernels in Triton's interpreter; run by test_primal.py in a process of its own."""

import pytest
import torch

from tests.ops.triton.cases import CASES, check


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize("name", CASES)
def test_kernels(name: str, dtype: torch.dtype) -> None:
    check(CASES[name], dtype, "cpu")
