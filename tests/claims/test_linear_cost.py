"""Claim: a primal layer costs time and memory linear in the length. Verdict: holds."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from kernelhead.nn import PrimalAttention
from tests.nn.primal_forms import FORMS


def operations(form: str, n: int) -> int:
    module = PrimalAttention(16, heads=2, rank=3, **FORMS[form])
    with FlopCounterMode(display=False) as counter:
        module(torch.zeros(1, n, 16))
    return counter.get_total_flops()


@pytest.mark.parametrize("form", FORMS)
def test_operations_grow_by_the_same_number_for_each_point(form: str) -> None:
    small, middle, large = (operations(form, n) for n in (1024, 2048, 4096))
    assert large - middle == 2 * (middle - small)
