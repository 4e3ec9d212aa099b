"""TimeEncoding and TimeAwareAttention: features of a kernel, mixes of two, padding, precision, and words."""

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kernelhead.errors import BadInput, ShapeError, UnknownName
from kernelhead.nn import (
    LinearAttention,
    PrimalAttention,
    SoftmaxAttention,
    TimeAwareAttention,
    TimeEncoding,
    ksvd_penalty,
    record,
    split_heads,
)
from kernelhead.rng import seeded
from tests.inputs import keep, points
from tests.oracles import time as oracle
from tests.tolerance import assert_exact

KERNELS: dict[str, dict[str, Any]] = {
    "free": {"kind": "bochner"},
    "normal": {"kind": "bochner", "spectrum": "normal"},
    "inverse_cdf": {"kind": "bochner", "spectrum": "inverse_cdf"},
    "fixed": {"kind": "bochner", "spectrum": "fixed"},
    "mercer": {"kind": "mercer", "harmonics": 1},
    "mercer_fixed": {"kind": "mercer", "harmonics": 1, "spectrum": "fixed"},
}
OTHERS: dict[str, dict[str, Any]] = {
    "published_bochner": {"kind": "bochner", "preset": "published"},
    "published_mercer": {"kind": "mercer", "preset": "published"},
    "scalar": {"kind": "scalar"},
    "position": {"kind": "position", "longest": 9},
    "none": {"kind": "none"},
}
kernels = pytest.mark.parametrize("options", KERNELS.values(), ids=KERNELS)
everything = pytest.mark.parametrize("options", (KERNELS | OTHERS).values(), ids=KERNELS | OTHERS)


def made(width: int = 6, *, seed: int = 0, **options: Any) -> TimeEncoding:
    """An encoding in float64 whose weights are somewhere, not at their start."""
    with seeded(seed):
        encoding = TimeEncoding(width, **options).double()
        for weight in encoding.parameters():
            weight.data += 0.1 * torch.randn_like(weight)
    return encoding


def times(b: int, n: int, seed: int = 0) -> torch.Tensor:
    return points(b, n, seed=seed).abs().cumsum(1)


@kernels
def test_features_are_those_of_the_kernel(options: dict[str, Any]) -> None:
    encoding, t = made(**options), times(1, 5)
    features, kernel = encoding(t)[0], encoding.kernel
    top = float(kernel.gram(t[0, :1], t[0, :1]))
    assert_exact(features @ features.mT + top, kernel.gram(t[0], t[0]) + top)
    assert float(torch.linalg.eigvalsh(kernel.gram(t[0], t[0])).min()) >= -1e-10 * top


@everything
@pytest.mark.parametrize("garbage", [1e300, float("nan"), float("inf")], ids=str)
def test_padding_has_no_encoding(options: dict[str, Any], garbage: float) -> None:
    encoding, mask, found = made(**options), keep([5, 3, 0], 5), []
    for filling in (0.0, garbage):
        features = encoding(times(3, 5).masked_fill(~mask, filling), mask=mask)
        assert bool((features[~mask] == 0).all())
        weights = [*encoding.parameters()]
        found.append([features, *(torch.autograd.grad(features.square().sum(), weights) if weights else ())])
    for clean, dirty in zip(*found, strict=True):
        assert torch.equal(clean, dirty)


@everything
def test_a_trained_spectrum_is_the_same_at_every_call(options: dict[str, Any]) -> None:
    encoding, t = made(**options), times(2, 5)
    before = torch.get_rng_state()
    assert torch.equal(encoding.train()(t), encoding.eval()(t))
    other = made(seed=1, **options)
    other.load_state_dict(encoding.state_dict())
    assert torch.equal(other(t), encoding(t))
    assert torch.equal(torch.get_rng_state(), before)


@everything
def test_gradients(options: dict[str, Any]) -> None:
    encoding, t = made(**options), times(2, 3)
    names = [name for name, _ in encoding.named_parameters()]
    if not names:
        assert options.get("spectrum") == "fixed" or options["kind"] == "none"
        return

    def run(*weights: torch.Tensor) -> torch.Tensor:
        held: torch.Tensor = torch.func.functional_call(
            encoding, dict(zip(names, weights, strict=True)), (t,)
        )
        return held

    assert torch.autograd.gradcheck(run, [w.detach().clone().requires_grad_() for w in encoding.parameters()])


@everything
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
def test_shape_and_whole_numbers(options: dict[str, Any], dtype: torch.dtype) -> None:
    encoding = TimeEncoding(6, **options).to(dtype)
    found = encoding(torch.tensor([[0, 1, 5]]))
    assert found.shape == (1, 3, 6)
    assert bool(found.isfinite().all())


def test_a_fixed_spectrum_is_never_trained_and_named_by_its_seed() -> None:
    one, two, other = (TimeEncoding(8, spectrum="fixed", seed=seed) for seed in (0, 0, 1))
    assert [*one.parameters()] == []
    assert torch.equal(one.frequencies, two.frequencies)
    assert not torch.equal(one.frequencies, other.frequencies)


def test_ladders_start_where_they_are_told() -> None:
    encoding = TimeEncoding(8, periods=(0.5, 32.0))
    found = 2 * torch.pi / encoding.frequencies
    assert torch.allclose(found, torch.tensor([0.5, 2.0, 8.0, 32.0]))
    quantiles = (
        2 * torch.pi / TimeEncoding(64, spectrum="inverse_cdf", periods=(0.5, 32.0)).frequencies.detach()
    )
    assert 0.5 < float(quantiles.min()) < 0.6
    assert 29 < float(quantiles.max()) < 32
    released = TimeEncoding(6, preset="published", periods=(1.0, 1e8), unit="seconds")
    assert torch.allclose(released.sine, torch.linspace(0, 8, 3))
    assert torch.equal(released.sine, released.cosine)


def test_positions_count_real_events_from_the_last() -> None:
    encoding = TimeEncoding(4, kind="position", longest=3)
    mask = torch.tensor([[False, True, True], [True, True, False]])
    found = encoding(torch.zeros(2, 3), mask=mask)
    assert torch.equal(found[0, 1:], encoding.table[[1, 0]])
    assert torch.equal(found[1, :2], encoding.table[[1, 0]])


@pytest.mark.parametrize("mix", ["add", "multiply"])
def test_the_mix_of_logits_is_the_definition(mix: str) -> None:
    layer = TimeAwareAttention(SoftmaxAttention(8, heads=2), time=TimeEncoding(4), mix=mix).double()
    layer.log_strength.data = torch.tensor([0.3, -0.2]).double()
    x, t = points(1, 5, 8), times(1, 5)
    with record(layer, patterns=True) as tape:
        output = layer(x, times=t)
    inner, code = layer.attention, layer.time(t)[0].detach()
    query, key, value = (
        split_heads(part(x), 2)[0].detach() for part in (inner.query, inner.key, inner.value)
    )
    rows = []
    for head, strength in enumerate(layer.log_strength.exp().tolist()):
        logits = oracle.mixed_logits(query[head], key[head], code, code, strength, mix)
        pattern = logits.softmax(-1)
        assert_exact(tape.last("").pattern.matrix()[0, head], pattern)
        rows.append(pattern @ value[head])
    assert_exact(output[0], inner.out(torch.cat(rows, dim=-1)))


def test_concatenation_is_the_attention_of_both() -> None:
    inner = SoftmaxAttention(12, heads=2).double()
    layer = TimeAwareAttention(inner, time=TimeEncoding(4).double())
    x, t = points(2, 5, 8), times(2, 5)
    assert_exact(layer(x, times=t), inner(torch.cat([x, layer.time(t)], dim=-1))[..., :8])


@given(shift=st.floats(0, 1e5), seed=st.integers(0, 99))
def test_kernels_of_time_do_not_know_when_it_began(shift: float, seed: int) -> None:
    layer = TimeAwareAttention(SoftmaxAttention(8, heads=2), time=TimeEncoding(4), mix="add").double()
    x, t = points(1, 5, 8, seed=seed), times(1, 5, seed)
    assert_exact(layer(x, times=t + shift), layer(x, times=t), bound=1e-6)


@pytest.mark.parametrize("mix", ["concatenate", "add", "multiply"])
def test_a_context_with_times_of_its_own(mix: str) -> None:
    inner = SoftmaxAttention(12 if mix == "concatenate" else 8, heads=2)
    layer = TimeAwareAttention(inner, time=TimeEncoding(4), mix=mix).double()
    x, t, mask = points(2, 5, 8), times(2, 5), keep([5, 3], 5)
    whole = layer(x, mask=mask, times=t)
    across = layer(x[:, :2], context=x, context_mask=mask, times=t[:, :2], context_times=t)
    assert_exact(across, whole[:, :2])


@pytest.mark.parametrize("mix", ["concatenate", "add", "multiply"])
def test_a_causal_layer_knows_no_later_event(mix: str) -> None:
    inner = SoftmaxAttention(12 if mix == "concatenate" else 8, heads=2, causal=True)
    layer = TimeAwareAttention(inner, time=TimeEncoding(4), mix=mix).double()
    x, t = points(1, 5, 8), times(1, 5)
    assert_exact(layer(x[:, :3], times=t[:, :3]), layer(x, times=t)[:, :3])


def test_events_a_unit_apart_are_the_default() -> None:
    layer = TimeAwareAttention(SoftmaxAttention(12, heads=2), time=TimeEncoding(4))
    x = points(1, 3, 8, dtype=torch.float32)
    assert torch.equal(layer(x), layer(x, times=torch.tensor([[0.0, 1.0, 2.0]])))


def test_the_penalty_reads_a_primal_layer_inside() -> None:
    layer = TimeAwareAttention(PrimalAttention(12, heads=2, rank=3), time=TimeEncoding(4))
    with record(layer) as tape:
        layer(points(2, 5, 8, dtype=torch.float32), times=times(2, 5))
    ksvd_penalty(tape).backward()
    assert layer.attention.root.grad is not None


def test_autocast_keeps_phases() -> None:
    encoding = TimeEncoding(8, unit="seconds", periods=(6.0, 60.0))
    t = 3e8 + torch.arange(6, dtype=torch.float64)[None]
    plain = encoding(t)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(encoding(t), plain)
        layer = TimeAwareAttention(SoftmaxAttention(16, heads=2), time=encoding)
        assert bool(layer(torch.zeros(1, 6, 8), times=t).isfinite().all())


def test_words_of_an_encoding() -> None:
    cases: list[tuple[dict[str, Any], type[Exception], str]] = [
        ({"kind": "fourier"}, UnknownName, "TimeEncoding: unknown kind 'fourier'"),
        ({"spectrum": "fre"}, UnknownName, "unknown spectrum 'fre', did you mean 'free'"),
        ({"preset": "mine"}, UnknownName, "unknown preset 'mine'"),
        ({"unit": "month"}, UnknownName, "TimeEncoding: unknown unit 'month'"),
        (
            {"periods": (2.0, 1.0)},
            BadInput,
            r"periods are \(2\.0, 1\.0\), expected the shortest and the longest",
        ),
        (
            {"kind": "mercer", "spectrum": "normal"},
            BadInput,
            "spectrum 'normal' is none of a mercer: free, fixed",
        ),
        (
            {"preset": "published", "spectrum": "fixed"},
            BadInput,
            "'fixed' is none of a published bochner: free",
        ),
        ({"kind": "scalar", "spectrum": "fixed"}, BadInput, "'fixed' is none of a scalar: free"),
        ({"kind": "scalar", "preset": "published"}, BadInput, "is of bochner and mercer, got kind 'scalar'"),
        ({"kind": "mercer", "harmonics": 2}, BadInput, "width is 6, expected a multiple of 5 for mercer"),
        ({"kind": "position"}, BadInput, "longest is 0, expected a whole number of at least 1"),
        ({"harmonics": 0}, BadInput, "harmonics is 0"),
    ]
    for options, kind, words in cases:
        with pytest.raises(kind, match=words):
            TimeEncoding(6, **options)
    with pytest.raises(BadInput, match="width is 5, expected a multiple of 2 for bochner"):
        TimeEncoding(5)
    with pytest.raises(
        BadInput, match=r"`times` is torch\.float32 of shape \(3,\), expected numbers \(b, n\)"
    ):
        TimeEncoding(6)(torch.zeros(3))
    with pytest.raises(BadInput, match=r"3 events, but positions are for 2 at most"):
        TimeEncoding(6, kind="position", longest=2)(torch.zeros(1, 3))
    for options, what in (({"kind": "scalar"}, "scalar"), ({"preset": "published"}, "published bochner")):
        with pytest.raises(BadInput, match=f"inner products of {what} features are no kernel of two times"):
            _ = TimeEncoding(6, **options).kernel
    assert "kind=bochner, spectrum=free, unit=days" in repr(TimeEncoding(6))


def test_words_of_a_mix() -> None:
    encoding = TimeEncoding(4)
    with pytest.raises(UnknownName, match="TimeAwareAttention: unknown mix 'plus'"):
        TimeAwareAttention(SoftmaxAttention(8, heads=2), time=encoding, mix="plus")
    with pytest.raises(
        BadInput, match=r"'add' changes the logit of a softmax, got LinearAttention; expected"
    ):
        TimeAwareAttention(LinearAttention(8, heads=2), time=encoding, mix="add")
    with pytest.raises(BadInput, match="the attention is 4 wide and the encoding 4, expected more"):
        TimeAwareAttention(SoftmaxAttention(4, heads=2), time=encoding)
    with pytest.raises(
        BadInput, match="positions are counted from the last event, which a causal attention must"
    ):
        TimeAwareAttention(
            SoftmaxAttention(12, heads=2, causal=True), time=TimeEncoding(4, kind="position", longest=3)
        )
    layer = TimeAwareAttention(SoftmaxAttention(12, heads=2), time=encoding)
    with pytest.raises(BadInput, match=r"`x` has shape \(1, 3, 12\), expected \(b, n, 8\)"):
        layer(torch.zeros(1, 3, 12))
    with pytest.raises(
        ShapeError, match=r"`times` has shape \(1, 2\), expected \(1, 3\), one entry for each"
    ):
        layer(torch.zeros(1, 3, 8), times=torch.zeros(1, 2))
    with pytest.raises(BadInput, match="`context_times` was given without `context`"):
        layer(torch.zeros(1, 3, 8), context_times=torch.zeros(1, 3))
    with pytest.raises(BadInput, match="`context_mask` was given without `context`"):
        layer(torch.zeros(1, 3, 8), context_mask=torch.ones(1, 3, dtype=torch.bool))
    causal = TimeAwareAttention(SoftmaxAttention(8, heads=2, causal=True), time=encoding, mix="add")
    with pytest.raises(BadInput, match="is causal, and so takes no `context`"):
        causal(torch.zeros(1, 3, 8), context=torch.zeros(1, 3, 8))
