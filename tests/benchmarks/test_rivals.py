"""The rivals compute what they are named after: a fast wrong answer would be no rival."""

import pytest

from benchmarks import rivals
from kernelhead.ops import (
    linear_attention,
    local_mix,
    nystrom_attention,
    performer_attention,
    primal_attention_moments,
    softmax_attention,
)
from tests.inputs import points
from tests.tolerance import assert_exact

SIDES = [points(2, 3, 256, 8, seed=seed) for seed in range(3)]


def test_linear(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rivals, "PART", 64)
    assert_exact(rivals.linear(*SIDES), linear_attention(*SIDES))


def test_causal_linear() -> None:
    assert_exact(rivals.causal_linear(*SIDES, chunk=32), linear_attention(*SIDES, causal=True))


def test_performer() -> None:
    frequencies = points(16, 8, seed=3)
    assert_exact(rivals.performer(*SIDES, frequencies), performer_attention(*SIDES, frequencies))


def test_nystrom() -> None:
    assert_exact(rivals.nystrom(*SIDES, landmarks=16), nystrom_attention(*SIDES, landmarks=16))


def test_primal() -> None:
    weights = [points(2, 3, 8, 4, seed=seed) for seed in (3, 4)]
    join = points(8, 8, seed=5), points(8, seed=6)
    given = SIDES[0], SIDES[1], *weights, *join
    for ours, theirs in zip(primal_attention_moments(*given), rivals.primal_moments(*given), strict=True):
        assert_exact(theirs, ours)


def test_several_calls_of_softmax_attention(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(rivals.BACKENDS, "flash", rivals.SDPBackend.MATH)
    query, key, value = SIDES
    once = softmax_attention(query, key, value, causal=True)
    assert_exact(
        rivals.sdpa("flash", causal=True, calls=2)(*SIDES), softmax_attention(query, key, once, causal=True)
    )


@pytest.mark.parametrize("dilation", [1, 3])
def test_neighbours(dilation: int) -> None:
    x, weight, bias = points(2, 20, 6), points(5, 6, seed=1), points(6, seed=2)
    ours = local_mix(x, weight, bias, dilation=dilation)
    assert_exact(rivals.depthwise(x.mT, weight, bias, dilation=dilation).mT, ours)
    for rival in (rivals.depthwise_rows, rivals.shifted):
        assert_exact(rival(x, weight, bias, dilation=dilation), ours)
