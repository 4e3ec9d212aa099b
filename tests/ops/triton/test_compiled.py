"""Every kernel goes through the compiler for a GPU, whether or not there is one."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tests.inputs import points

pytest.importorskip("triton", reason="the extra gpu is not installed")

from kernelhead.ops.triton import (
    features,
    feedforward,
    inverse,
    landmarks,
    local,
    lookup,
    maps,
    prefix,
    primal,
    rpc,
)
from kernelhead.ops.triton.step import primal_step
from tests.ops.triton import (
    cases,
    features_cases,
    feedforward_cases,
    inverse_cases,
    local_cases,
    lookup_cases,
    maps_cases,
    prefix_cases,
    rpc_cases,
)
from tests.ops.triton.compiler import launches_compile

LAUNCHED = {
    f"{file.stem}.{name}"
    for file in Path(primal.__file__).parent.glob("*.py")
    for name in re.findall(r"(\w+)\[\(", file.read_text())
}
DTYPES = [
    torch.bfloat16,
    *(pytest.param(dtype, marks=pytest.mark.long) for dtype in (torch.float32, torch.float16)),
]


@pytest.fixture
def cached(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    """A cache of this session's."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path_factory.getbasetemp() / "triton"))


@pytest.fixture
def names(cached: None) -> Iterator[dict[str, int]]:
    """Launches compile."""
    with launches_compile() as made:
        yield made


@pytest.mark.slow
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_all_compile(dtype: torch.dtype, names: dict[str, int]) -> None:
    _primal(dtype)
    _scans(dtype)
    _landmarks(dtype)
    _steps(dtype)
    _pursuit(dtype)
    _neighbours(dtype)
    _feed_forward(dtype)
    _maps(dtype)
    _tables(dtype)
    _features(dtype)
    _inverses()
    assert set(names) == LAUNCHED


# Where the backends say that kernels fit: 99 KiB of shared memory, and another kind of compiler.
@pytest.mark.slow
@pytest.mark.parametrize(("capability", "bytes_held"), [(89, 101_376), (100, 232_448)])
def test_what_serves_linear_rivals_compiles_for_other_devices(
    capability: int, bytes_held: int, cached: None
) -> None:
    with launches_compile(capability) as names:
        for d, p in ((32, 64), (64, None), *(((32, 111), (64, 64)) if capability == 100 else ())):
            case = features_cases.Case(n=70, m=70, d=d, e=d, p=p)
            given = *case.sides(torch.bfloat16, "cpu"), case.frequencies("cpu"), None
            made, *sums = features.forward(*given)
            features.backward(*given, *sums, made)
        _inverses(*(("few", "a block and one") if capability == 100 else ()))
        _maps(torch.bfloat16)
    assert len(names) == 8
    assert max(names.values()) <= bytes_held


def _primal(dtype: torch.dtype) -> None:
    for name in ("ragged", "a join for each head", "groups of sequences", "causal", "causal, masked"):
        case = cases.CASES[name]
        inputs, mask = case.inputs(dtype, "cpu")
        grad, pull = torch.zeros_like(inputs[0]), torch.zeros(*inputs[0].shape[:2], case.s)
        for moments in (False, True):
            primal.forward(*inputs, mask, moments, case.causal, case.layout)
        primal.backward(*inputs, mask, grad, pull, pull, case.causal, case.layout)


def _scans(dtype: torch.dtype) -> None:
    for name in ("one point", "chunk - 1", "several chunks"):
        case = prefix_cases.CASES[name]
        sides, mask = case.sides(dtype, "cpu"), case.mask("cpu")
        counts = None if mask is None else mask.cumsum(-1).clamp_min(1)
        for reverse in (False, True):
            prefix.prefix_products(*sides, reverse, case.layout)
            prefix.running_means(sides[0], mask, counts, reverse, case.layout)


def _landmarks(dtype: torch.dtype) -> None:
    for case in cases.LANDMARKS.values():
        (x, left, right), places = case.inputs(dtype, "cpu")
        grads = [torch.zeros(case.batch, case.heads, case.d, case.s, dtype=dtype)] * 2
        landmarks.forward(x, places, left, right, dtype)
        landmarks.backward(x, places, left, right, *grads)


def _steps(dtype: torch.dtype) -> None:
    for rows in (False, True):
        query, key, row = (points(2, 3, 1, 5, seed=i, dtype=dtype) for i in range(3))
        state = [torch.zeros(2, 3, 5, 2) if rows else torch.zeros(2, 3, 5)] * 2
        weights = [points(3, 4 if rows else 5, 2, seed=i, dtype=dtype) for i in (5, 6)]
        ends = points(5, 4, seed=7, dtype=dtype), points(5, seed=8, dtype=dtype), torch.tensor([True, False])
        primal_step((query, key, row if rows else None), (*state, torch.tensor([4, 9])), (*weights,), *ends)


def _pursuit(dtype: torch.dtype) -> None:
    for name in ("first", "ragged", "journal", "last", "a bound for each point"):
        case = rpc_cases.CASES[name]
        key, *previous, bound = case.inputs(dtype, "cpu")
        apart = rpc_cases.is_apart(key, case.first, case.preprint, case.last)
        how = {"preprint": case.preprint, "apart": apart, "tile": case.tile}
        given = key, previous[0] if previous else None, previous[1:], bound
        state, _, side = rpc.forward(*given, **how, keep=True)
        rpc.forward(*given, **how, keep=False)
        pulls = None if state is None or case.last else torch.zeros_like(state), torch.zeros_like(key)
        kinds = dtype, previous[0].dtype if previous else None
        rpc.backward(side, *pulls, kinds, bound.shape[2], case.preprint, case.tile)
    rpc.opening(points(2, 3, 70, 16, dtype=dtype), 0.5, True, 0.0)


def _neighbours(dtype: torch.dtype) -> None:
    for name in ("one point", "few", "several tiles"):
        case = local_cases.CASES[name]
        x, weight, bias = case.inputs(dtype, "cpu")
        local.mix(x, weight, bias, case.dilation, case.taps // 2, False)
        local.mix(x, weight, None, case.dilation, case.taps // 2, True)
        local.weigh(x, torch.zeros_like(x), case.taps, case.dilation, case.taps // 2)


def _feed_forward(dtype: torch.dtype) -> None:
    kind = torch.bfloat16 if dtype == torch.float32 else dtype
    for name in ("few", "half", "several tiles", "widest"):
        case = feedforward_cases.CASES[name]
        x, *weights = case.inputs(kind, "cpu")
        norm, enter, leave = ((*weights[at : at + 2],) for at in (0, 2, 4))
        how = case.word("cpu"), case.dropout, feedforward_cases.EPSILON
        feedforward.forward(x, norm, enter, leave, *how, kind)
        feedforward.backward(x, norm, enter, leave[0], how[0], torch.zeros_like(x), *how[1:], kind)


def _maps(dtype: torch.dtype) -> None:
    kind = torch.bfloat16 if dtype == torch.float32 else dtype
    for name in ("few", "a tile less one", "several tiles", "queries with keys"):
        case = maps_cases.CASES[name]
        x, *parts = case.inputs(kind, "cpu")
        made = maps.forward(x, list(zip(parts[::2], parts[1::2], strict=True)))
        maps.backward(x, parts[::2], made)


def _features(dtype: torch.dtype) -> None:
    for name in ("one query", "ragged, drawn", "fused projection", "widest, drawn"):
        case = features_cases.CASES[name]
        given = *case.sides(dtype, "cpu"), case.frequencies("cpu"), case.mask("cpu")
        made, *sums = features.forward(*given)
        features.backward(*given, *sums, made)


def _tables(dtype: torch.dtype) -> None:
    for case in lookup_cases.CASES.values():
        tokens = case.tokens("cpu")
        lookup.gathered(tokens, points(*tokens.shape, case.c, dtype=dtype), case.vocabulary)


def _inverses(*names: str) -> None:
    for name in names or ("few", "a block and one", "ragged", "widest"):
        case = inverse_cases.CASES[name]
        matrix = case.matrix("cpu")
        largest = matrix.sum(-2).amax(-1)
        inverse.forward(matrix, largest, case.iterations, False)
        _, kept = inverse.forward(matrix, largest, case.iterations, True)
        inverse.backward(matrix, largest, kept, torch.zeros_like(matrix))
