"""Claim: depth of self-attention multiplies what it expresses up to log_3 of the width and then only adds.

Levine and others 2020 (arXiv 2006.12467), for networks without softmax. Verdict: holds, by exact ranks. That
the number of heads has no part in it holds when heads have two features or more and a side is one point.
"""

from itertools import pairwise
from math import log

import pytest
from torch import nn

from kernelhead.inspection import separation_rank
from kernelhead.nn import PolynomialAttention
from kernelhead.ops import generic_rank
from kernelhead.rng import seeded


def rank(depth: int, width: int, heads: int = 1, points: int = 1) -> int:
    with seeded(0):
        layers = nn.Sequential(*(PolynomialAttention(width, heads=heads) for _ in range(depth)))
    return separation_rank(layers, left=points, right=points).rank


def test_above_the_threshold_a_layer_adds_the_width() -> None:
    """Width 2, whose threshold is 0.6 layers: to base 3 a layer adds 1.5, then 1.8, and 2 in the end."""
    ranks = [log(rank(depth, 2), 3) for depth in (1, 2, 3)]
    assert ranks == [pytest.approx(log(generic_rank(depth, 2), 3)) for depth in (1, 2, 3)]
    gains = [after - before for before, after in pairwise(ranks)]
    assert gains == sorted(gains)
    assert 1.7 < gains[-1] < 2


def test_below_the_threshold_a_layer_multiplies() -> None:
    """Width 6: one layer to two multiplies the logarithm by 2.7; at width 2 by 2.5."""
    wide, narrow = (log(rank(2, width)) / log(rank(1, width)) for width in (6, 2))
    assert wide > 2.7 > 2.5 > narrow


def test_heads_have_no_part_in_it_when_they_are_wide_enough() -> None:
    assert rank(2, 4, heads=1) == rank(2, 4, heads=2) == 70
    assert rank(2, 4, heads=4) == 69
    assert rank(2, 4, heads=2, points=2) < rank(2, 4, heads=1, points=2)
