"""Kernels that mix neighbours in Triton's interpreter; run by test_local.py in a process of its own."""

import pytest
import torch

from kernelhead.ops.triton.local import traced_backward, traced_mix
from tests.ops.triton.local_cases import CASES, check


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize("name", CASES)
def test_kernels(name: str, dtype: torch.dtype) -> None:
    check(CASES[name], dtype, "cpu")


@pytest.mark.parametrize("name", ["ragged", "strided"])
def test_custom_ops(name: str) -> None:
    case = CASES[name]
    tensors = [each.requires_grad_() for each in case.inputs(torch.float32, "cpu")]
    torch.library.opcheck(traced_mix, (*tensors, case.dilation, 1))
    tensors = [each.detach() for each in tensors]
    torch.library.opcheck(traced_backward, (*tensors, tensors[0], case.dilation, 1))
