"""alignment: figures by their definitions, verdicts that can go both ways, padding, large keys, words."""

import json
from dataclasses import asdict, replace
from math import exp, inf, isfinite, isnan, nan, sqrt
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from kernelhead.decomposition import kpca_values, log_norms
from kernelhead.errors import BadInput, ShapeError
from kernelhead.inspection import Alignment, HeadAlignment, alignment, host_sides, kpca_record, sides_of
from kernelhead.models import SequenceClassifier
from kernelhead.nn import (
    AbstractKernelAttention,
    RPCAttention,
    ScaledAttention,
    SoftmaxAttention,
    SymmetricAttention,
    merge_heads,
)
from kernelhead.ops import softmax_attention
from kernelhead.rng import seeded
from tests.inputs import keep, points
from tests.tolerance import assert_exact

SPANS = ("span_residual", "cosine_mean", "cosine_least", "explained", "cka")


def figures(read: tuple[HeadAlignment, ...]) -> Tensor:
    return torch.tensor([list(asdict(head).values()) for head in read], dtype=torch.float64)


def by_definition(query: Tensor, key: Tensor, value: Tensor) -> dict[str, float]:
    """The figures of one head as they are defined, for keys small enough for plain exponentials."""
    (n, d), e = key.shape, value.shape[-1]

    def kernel(x: Tensor, y: Tensor) -> float:
        return exp(float(x @ y) / sqrt(d))

    def g(x: Tensor) -> float:
        return sum(kernel(x, k) for k in key)

    gram = torch.tensor([[kernel(a, b) / (g(a) * g(b)) for b in key] for a in key], dtype=torch.float64)
    middle = torch.eye(n, dtype=torch.float64) - 1 / n
    gram = middle @ gram @ middle
    values, vectors = (part.flip(-1) for part in torch.linalg.eigh(gram))
    columns = middle @ torch.stack([g(k) * v for k, v in zip(key, value, strict=True)])
    columns = columns / columns.norm(dim=0)
    basis, lead = torch.linalg.qr(columns).Q, vectors[:, :e]
    features = [kernel(q, q) / g(q) ** 2 for q in query]
    outputs = [
        float(sum(kernel(q, k) * v for k, v in zip(key, value, strict=True)).square().sum()) / g(q) ** 2
        for q in query
    ]
    residuals, relative, absolute = [], [], []
    for a in columns.T:
        rho = a @ gram @ a
        residuals.append(float((gram @ a - rho * a).norm() / rho.abs()))
        gamma = (gram @ a) / (n * a)
        for i in range(n):
            for j in range(i):
                absolute.append(float((gamma[i] - gamma[j]).abs()))
                relative.append(absolute[-1] / float(max(gamma[i].abs(), gamma[j].abs())))
    cosines = torch.linalg.svdvals(lead.T @ basis)
    moved = gram @ basis

    def mean(numbers: list[float]) -> float:
        return sum(numbers) / len(numbers)

    return {
        "bessel_rate": mean([float(h > f) for h, f in zip(outputs, features, strict=True)]),
        "log_ratio": float((torch.tensor(outputs) / torch.tensor(features)).double().log().mean()),
        "reconstruction": mean(features) - mean(outputs),
        "feature_norm": mean(features),
        "output_norm": mean(outputs),
        "column_residual": sorted(residuals)[(e - 1) // 2],
        "span_residual": float((moved - basis @ basis.T @ moved).norm() / moved.norm()),
        "cosine_mean": float(cosines.mean()),
        "cosine_least": float(cosines.min()),
        "explained": float((basis.T @ moved).trace() / values[:e].sum()),
        "cka": float((lead.T @ columns).square().sum() / ((columns.T @ columns).norm() * sqrt(e))),
        "gamma_relative": mean(relative),
        "gamma_absolute": mean(absolute),
    }


@pytest.mark.parametrize(("n", "e"), [(5, 1), (9, 3), (12, 6)])
def test_figures_are_their_definitions(n: int, e: int) -> None:
    query, key, value = points(1, 2, n, 4), points(1, 2, n, 4, seed=1), points(1, 2, n, e, seed=2)
    read = alignment(query, key, value).heads
    for head in range(2):
        expected = by_definition(query[0, head], key[0, head], value[0, head])
        for name, figure in asdict(read[head]).items():
            assert figure == pytest.approx(expected[name], rel=1e-6), name


def test_figures_are_the_mean_over_cases() -> None:
    query, key, value = (points(3, 2, 10, 4, seed=seed) for seed in range(3))
    each = [figures(alignment(*(s[i : i + 1] for s in (query, key, value))).heads) for i in range(3)]
    assert_exact(figures(alignment(query, key, value).heads), torch.stack(each).mean(0))


@pytest.mark.parametrize("scale", [0.1, 1.0, 4.0])
def test_constructed_values_hold(scale: float) -> None:
    query, key = points(2, 3, 24, 8, seed=1) * scale, points(2, 3, 24, 8) * scale
    found = alignment(query, key, kpca_values(key, 5))
    assert found.verdict == "holds"
    for head in found.heads:
        assert head.bessel_rate == 0
        assert head.reconstruction >= 0
        assert min(head.explained, head.cosine_least, head.cka) > 1 - 1e-6
        assert max(head.span_residual, head.column_residual) < 1e-4
    assert found.sentence.startswith("holds: explained 1.000, by chance 0.")


def test_constructed_values_hold_on_unseen_queries_too() -> None:
    key = points(1, 2, 24, 8)
    assert alignment(10 * points(1, 2, 24, 8, seed=3), key, kpca_values(key, 5)).heads[0].bessel_rate == 0


@given(seed=st.integers(0, 999))
def test_a_map_of_the_columns_changes_no_span_and_no_verdict(seed: int) -> None:
    key = points(1, 2, 20, 6, seed=seed)
    value = kpca_values(key, 4)
    mapped = alignment(key, key, value @ (points(4, 4, seed=seed + 1) + 3 * torch.eye(4)))
    assert mapped.verdict == "holds"
    assert min(head.cosine_least for head in mapped.heads) > 1 - 1e-6


def test_a_large_map_breaks_bessel_and_the_sentence_says_so() -> None:
    key = points(1, 2, 20, 6)
    found = alignment(key, key, 1e3 * kpca_values(key, 4))
    assert found.verdict == "holds"
    assert found.sentence.startswith("holds up to a map of the value columns: ")
    assert found.sentence.endswith("Bessel's inequality fails for 100% of queries")
    assert found.heads[0].reconstruction < 0


@pytest.mark.parametrize("seed", range(4))
def test_random_and_permuted_values_do_not_hold(seed: int) -> None:
    key, order = (
        points(2, 2, 24, 8, seed=seed),
        torch.randperm(24, generator=torch.Generator().manual_seed(seed)),
    )
    for value in (points(2, 2, 24, 5, seed=seed + 9), kpca_values(key, 5)[:, :, order]):
        found = alignment(key, key, value)
        assert found.verdict == "does not hold"
        assert found.sentence.startswith("does not hold: ")


def test_trailing_eigenvectors_hold_in_part() -> None:
    key = points(2, 2, 24, 8)
    found = alignment(key, key, kpca_values(key, 10)[..., 5:])
    assert found.verdict == "holds in part"
    assert found.heads[0].span_residual < 1e-6
    assert found.heads[0].cosine_mean < 1e-6


def test_some_leading_eigenvectors_hold_in_part() -> None:
    key = points(2, 2, 24, 8)
    value = torch.cat([kpca_values(key, 3), points(2, 2, 24, 2, seed=5)], dim=-1)
    assert alignment(key, key, value).verdict == "holds in part"


def test_one_head_of_two_holds_in_part() -> None:
    key = points(2, 2, 24, 8)
    value = kpca_values(key, 5)
    value[:, 1] = points(2, 24, 5, seed=5)
    assert alignment(key, key, value).verdict == "holds in part"


def test_values_that_are_a_layer_of_the_same_points_are_told_by_redrawn_ones() -> None:
    # Points of few dimensions: any layer of them spans nearly what the leading eigenvectors do.
    x = points(2, 30, 6)
    key = (x @ points(6, 8, seed=1) / 6).unsqueeze(1)
    value = (x @ points(6, 6, seed=2)).unsqueeze(1)
    assert alignment(key, key, value).verdict == "holds in part"
    found = alignment(key, key, value, points=x)
    assert found.verdict == "does not hold"
    assert found.baselines["redrawn"][0].explained > 0.8 > 0.5 > found.baselines["permuted"][0].explained


def test_as_many_columns_as_points_tell_nothing() -> None:
    key, value = points(1, 2, 6, 8), points(1, 2, 6, 8, seed=1)
    found = alignment(key, key, value)
    assert found.verdict == "cannot be told"
    assert found.sentence.startswith(
        "cannot be told: no more points than value columns, or keys beyond float64"
    )
    assert all(isnan(getattr(found.heads[0], name)) for name in SPANS)
    assert all(isfinite(v) for name, v in asdict(found.heads[0]).items() if name not in SPANS)


def test_short_cases_are_left_out_of_spans_only() -> None:
    query, key, value = (points(2, 2, 12, 4, seed=seed) for seed in range(3))
    both = alignment(query, key, value, mask=keep([12, 5], 12)).heads[0]
    long = alignment(query[:1], key[:1], value[:1]).heads[0]
    assert all(getattr(both, name) == pytest.approx(getattr(long, name)) for name in SPANS)
    assert both.log_ratio != pytest.approx(long.log_ratio)


def test_chance_that_reaches_kernel_pca_tells_nothing() -> None:
    same = HeadAlignment(*[0.0] * 6, 0.0, 1.0, 1.0, 1.0, 1.0, 0.0, 0.0)
    assert Alignment((same,), {"permuted": (same,)}).verdict == "cannot be told"


def test_padding_changes_nothing() -> None:
    sides = [points(2, 2, 12, 4, seed=seed) for seed in range(3)]
    x = points(2, 12, 5, seed=3)
    bare = alignment(*sides, points=x)
    longer = [nn.functional.pad(side, (0, 0, 0, 3), value=nan) for side in sides]
    padded = alignment(*longer, points=nn.functional.pad(x, (0, 0, 0, 3)), mask=keep([12, 12], 15))
    assert_exact(figures(padded.heads), figures(bare.heads))
    assert padded.baselines.keys() == bare.baselines.keys() == {"permuted", "gaussian", "redrawn"}
    for name in bare.baselines:
        assert_exact(figures(padded.baselines[name]), figures(bare.baselines[name]))


def test_real_points_may_stand_anywhere() -> None:
    sides, mask = [points(1, 1, 9, 3, seed=seed) for seed in range(3)], torch.ones(1, 9, dtype=torch.bool)
    mask[0, [0, 4]] = False
    chosen = [side[:, :, mask[0]] for side in sides]
    assert_exact(figures(alignment(*sides, mask=mask).heads), figures(alignment(*chosen).heads))


def large_keys(size: float) -> Tensor:
    """Keys of kernel exp(size) at most; exp overflows beyond 88 in float32 and beyond 709 in float64."""
    squares = torch.linspace(size - 20, size, 20, dtype=torch.float64)[:, None] * sqrt(8)
    return nn.functional.normalize(points(1, 2, 20, 8), dim=-1) * squares.sqrt()


@pytest.mark.parametrize(("size", "verdict"), [(100, "does not hold"), (900, "cannot be told")])
def test_keys_whose_exponentials_overflow(size: float, verdict: str) -> None:
    key = large_keys(size)
    found = alignment(key, key, points(1, 2, 20, 4))
    assert isfinite(found.heads[0].log_ratio)
    assert found.verdict == verdict


def test_constructed_values_of_large_keys_hold() -> None:
    key = large_keys(220)
    found = alignment(key, key, kpca_values(key, 4))
    assert kpca_values(key, 4).abs().max() < 1e-30
    assert found.verdict == "holds"
    assert found.heads[0].bessel_rate == 0


def test_values_in_float32_hold_too() -> None:
    key = points(2, 2, 20, 8, dtype=torch.float32)
    assert alignment(key, key, kpca_values(key, 4).float()).verdict == "holds"


def test_values_without_a_span_do_not_hold() -> None:
    key = points(1, 1, 9, 4)
    # Zero, and what the centring of g_j v_j makes zero.
    for value in (torch.zeros(1, 1, 9, 2), (-log_norms(key)).exp()[..., None].expand(1, 1, 9, 2)):
        found = alignment(key, key, value)
        assert found.verdict == "does not hold"
        head = found.heads[0]
        assert (head.explained, head.cosine_mean, head.span_residual, head.cka) == (0, 0, 1, 0)
        assert isnan(head.gamma_relative)


def test_equal_columns_span_one_direction() -> None:
    key = points(1, 1, 9, 4)
    found = alignment(key, key, torch.ones(1, 1, 9, 2))
    assert found.verdict == "does not hold"
    assert found.heads[0].cosine_least == pytest.approx(0, abs=1e-9)


def test_a_query_opposite_to_all_keys_has_a_feature_beyond_float64() -> None:
    key = points(1, 1, 9, 4) * 0.1 + 10
    found = alignment(-40 * key, key, points(1, 1, 9, 2))
    assert found.heads[0].feature_norm == inf
    assert found.heads[0].bessel_rate == 0
    assert isfinite(found.heads[0].log_ratio)


def test_the_same_seed_gives_the_same_baselines_and_no_other_draw_moves() -> None:
    sides = [points(1, 1, 9, 3, seed=seed) for seed in range(3)]
    state = torch.get_rng_state()
    first, again, other = (alignment(*sides, seed=seed) for seed in (3, 3, 4))
    assert torch.equal(torch.get_rng_state(), state)
    assert first == again
    assert first.heads == other.heads
    assert first.baselines != other.baselines


def test_nothing_that_is_read_changes() -> None:
    sides = [points(1, 1, 9, 3, seed=seed) for seed in range(3)]
    before = [side.clone() for side in sides]
    alignment(*sides)
    assert all(map(torch.equal, sides, before))


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"key": points(1, 2, 8, 4)}, ShapeError, r"axis `n` is 9 in `query` but 8 in `key`"),
        ({"points": points(1, 8, 4)}, ShapeError, r"axis `n` is 9 in `query` but 8 in `points`"),
        ({"mask": torch.ones(1, 9)}, BadInput, r"`mask` is torch.float32, expected torch.bool"),
        (
            {"mask": torch.ones(9, dtype=torch.bool)},
            ShapeError,
            r"`mask` has shape \(9,\), expected \(1, 9\)",
        ),
        ({"mask": keep([2], 9)}, BadInput, r"alignment: no case has three real points, of 1 cases"),
        ({"draws": 0}, BadInput, r"draws is 0, expected a whole number of at least 1"),
        (
            {"value": points(1, 2, 9, 4) * inf},
            BadInput,
            r"alignment: case 0 holds a number that is not finite",
        ),
    ],
    ids=["key", "points", "dtype", "mask", "short", "draws", "infinite"],
)
def test_what_is_wrong_is_named(change: dict[str, Any], error: type[Exception], words: str) -> None:
    given = {name: points(1, 2, 9, 4, seed=seed) for seed, name in enumerate(("query", "key", "value"))}
    with pytest.raises(error, match=words):
        alignment(**{**given, **change})


def classifier(attention: str, **options: Any) -> SequenceClassifier:
    with seeded(0):
        return SequenceClassifier(
            2, channels=2, width=8, heads=2, attention=attention, dropout=0.5, **options
        )


class Single(nn.Module):
    """One attention that is called as a test says."""

    def __init__(self, attention: AbstractKernelAttention | None = None, **options: bool) -> None:
        super().__init__()
        self.attention, self.options = attention or SoftmaxAttention(8, heads=2), options

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        if self.options.get("idle"):
            return x
        context = x[:, :4] if self.options.get("context") else None
        return self.attention(x, mask=mask, context=context)


def test_sides_are_those_of_the_layer() -> None:
    model, x, mask = classifier("softmax", pooling="cls"), points(3, 7, 2).float(), keep([7, 4, 3], 7)
    layer = model.blocks[0].attention
    seen = []
    hook = layer.value.register_forward_hook(lambda _, given, output: seen.append(given[0]))
    read = sides_of(model, x, mask)
    hook.remove()
    found = read.sides["blocks.0.attention"]
    assert (found.kind, list(read.sides), read.skipped) == (
        "SoftmaxAttention", ["blocks.0.attention", "blocks.1.attention"], {},
    )  # fmt: skip
    # One call by the model, one by the reader, with the point that pooling puts in front.
    assert len(seen) == 2
    assert torch.equal(found.points, seen[0])
    assert found.mask is not None
    assert found.mask.sum(1).tolist() == [8, 5, 4]


LAYERS: dict[str, AbstractKernelAttention] = {
    "softmax": SoftmaxAttention(8, heads=2),
    "symmetric": SymmetricAttention(8, heads=2),
    "rpc": RPCAttention(8, heads=2, iterations=3),
    "rpc once": RPCAttention(8, heads=2, iterations=1, preset="corrected", strength=0.2),
    "rpc with queries": RPCAttention(8, heads=2, preset="corrected", symmetric=False),
    "scaled": ScaledAttention(8, heads=2),
    "scaled by a matrix": ScaledAttention(8, heads=2, mode="matrix", longest=9),
}


@pytest.mark.parametrize("name", LAYERS)
def test_attention_of_the_sides_is_what_a_layer_does(name: str) -> None:
    layer = LAYERS[name].double()
    if name == "scaled by a matrix":
        nn.init.normal_(layer.matrix)
    model, x, mask = Single(layer), points(2, 7, 8), keep([7, 4], 7)
    found = sides_of(model, x, mask).sides["attention"]
    mixed = softmax_attention(found.query, found.key, found.value, mask=mask[:, None])
    output = layer.out(merge_heads(mixed)).masked_fill(~mask[..., None], 0)
    assert_exact(output, model(x, mask))
    assert found.kind == type(layer).__name__


def test_a_model_is_left_as_it_was() -> None:
    model = classifier("softmax")
    model.blocks[0].eval()
    modes = [module.training for module in model.modules()]
    first, again = (sides_of(model, points(2, 5, 2).float()) for _ in range(2))
    assert [module.training for module in model.modules()] == modes
    assert not any(module._forward_pre_hooks for module in model.modules())
    assert torch.equal(first.sides["blocks.1.attention"].key, again.sides["blocks.1.attention"].key)
    assert not first.sides["blocks.1.attention"].key.requires_grad


def test_hooks_go_when_a_model_fails() -> None:
    model = classifier("softmax")
    with pytest.raises(BadInput, match="`x` is"):
        sides_of(model, points(2, 5, 3).float())
    assert not any(module._forward_pre_hooks for module in model.modules())


def test_padding_that_is_nan_reaches_nothing() -> None:
    model, x = Single(), points(2, 6, 8).float()
    x[1, 4:] = nan
    found = sides_of(model, x, keep([6, 4], 6)).sides["attention"]
    assert found.value.isfinite().all()


def test_layers_that_cannot_be_read_are_named() -> None:
    read = sides_of(classifier("primal+"), points(2, 5, 2).float())
    assert list(read.sides) == ["blocks.0.attention"]
    assert read.skipped == {"blocks.1.attention": "PrimalAttention has no softmax pattern"}


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (
            Single(SoftmaxAttention(8, heads=2, causal=True)),
            "attention: SoftmaxAttention is causal, and no values serve a kernel PCA of every",
        ),
        (Single(context=True), "attention: SoftmaxAttention attends to a context"),
        (Single(idle=True), "attention: SoftmaxAttention was not called"),
        (nn.Bilinear(8, 8, 2), "Bilinear has no softmax attention to read .no attention."),
    ],
    ids=["causal", "context", "idle", "none"],
)
def test_a_model_without_a_layer_to_read_is_named(model: nn.Module, reason: str) -> None:
    x = points(2, 5, 8).float()
    with pytest.raises(BadInput, match=reason):
        sides_of(model, x, x if isinstance(model, nn.Bilinear) else None)


def test_only_primal_layers_are_named() -> None:
    with pytest.raises(
        BadInput, match=r"no softmax attention to read \(blocks\.0\.attention: PrimalAttention has"
    ):
        sides_of(classifier("primal"), points(2, 5, 2).float())


def test_the_record_is_json_with_null_for_what_is_not_finite() -> None:
    model, x = classifier("primal+"), points(2, 9, 2).float()
    read = sides_of(model, x)
    [(path, sides)] = read.sides.items()
    found = alignment(sides.query, sides.key, sides.value, points=sides.points)
    broken = replace(found, heads=(replace(found.heads[0], feature_norm=inf, cka=nan), found.heads[1]))
    record = kpca_record(read, {path: broken}, cases=2, length=9, seed=5)
    assert json.loads(json.dumps(record, allow_nan=False)) == record
    [layer] = record["layers"]
    assert (layer["path"], layer["kind"], layer["verdict"]) == (path, "SoftmaxAttention", broken.verdict)
    assert layer["heads"][0]["feature_norm"] is layer["heads"][0]["cka"] is None
    assert layer["heads"][1]["explained"] == found.heads[1].explained
    assert {name: len(heads) for name, heads in layer["baselines"].items()} == {
        "permuted": 2, "gaussian": 2, "redrawn": 2,
    }  # fmt: skip
    assert (record["cases"], record["length"], record["seed"]) == (2, 9, 5)
    assert record["skipped"] == read.skipped


def test_a_batch_that_is_not_for_the_host_is_said() -> None:
    with pytest.raises(
        BadInput, match=r"host_sides: TransformerEncoderLayer cannot take a tensor \(2, 5, 3\)"
    ):
        host_sides(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), torch.zeros(2, 5, 3))
