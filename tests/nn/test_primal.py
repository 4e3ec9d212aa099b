"""PrimalAttention: its answer in every form, its laws, its gradients, its words."""

import copy

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from kernelhead.decomposition import ksvd
from kernelhead.errors import BadInput, ShapeError, UnknownName
from kernelhead.kernels import Exponential, draw_frequencies
from kernelhead.nn import PrimalAttention, ksvd_penalty, record
from tests.inputs import keep, points
from tests.nn.primal_forms import FORMS, layer, oracle
from tests.tolerance import assert_exact, assert_within

forms = pytest.mark.parametrize("form", FORMS)
lengths = pytest.mark.parametrize("n", [1, 2, 5, 7, 12], ids="n{}".format)


@forms
@lengths
@pytest.mark.parametrize("masked", [False, True], ids=["whole", "masked"])
@pytest.mark.parametrize("rank", [1, 3, 6], ids="s{}".format)
def test_the_layer_is_the_definition(form: str, n: int, masked: bool, rank: int) -> None:
    module, x = layer(form, rank=rank), points(3, n, 8)
    mask = keep([n, max(1, n - 2), 0], n) if masked else None
    with record(module, patterns=True) as tape:
        output = module(x, mask=mask)
    expected, call = oracle(module, x, mask=mask), tape.last("")
    assert_exact(output, expected.output)
    assert_exact(call.moments.left, expected.left_moments)
    assert_exact(call.moments.right, expected.right_moments)
    assert_exact(call.moments.trace, expected.trace)
    assert_exact(call.moments.projected_trace, expected.projected_trace)
    assert_exact(call.pattern.left, expected.left_scores)
    assert_exact(call.pattern.right, expected.right_scores)


@forms
@pytest.mark.parametrize("init", ["orthonormal", "published"])
def test_a_join_for_each_head(form: str, init: str) -> None:
    module, x = layer(form, join="per_head", init=init), points(2, 6, 8)
    assert_exact(module(x), oracle(module, x).output)


@pytest.mark.parametrize(("n", "m"), [(4, 7), (6, 2), (1, 1)])
def test_across_two_sequences(n: int, m: int) -> None:
    module, x, context = layer("dependent"), points(2, n, 8), points(2, m, 8, seed=1)
    masks = {"mask": keep([n, max(1, n - 1)], n), "context_mask": keep([m, max(1, m - 1)], m)}
    with record(module, patterns=True) as tape:
        output = module(x, context=context, **masks)
    expected, call = oracle(module, x, context=context, **masks), tape.last("")
    assert_exact(output, expected.output)
    assert_exact(call.moments.left, expected.left_moments)
    assert_exact(call.moments.right, expected.right_moments)
    assert_exact(call.moments.projected_trace, expected.projected_trace)
    assert call.pattern.shape == (2, 2, n, m)


@pytest.mark.parametrize("name", ["identity", "relu", "elu", "polynomial", "exponential"])
@forms
def test_every_feature_map_runs_in_every_form(form: str, name: str) -> None:
    module = PrimalAttention(8, heads=2, rank=3, feature_map=name, **FORMS[form]).double()
    x, mask = points(2, 6, 8), keep([6, 3], 6)
    output = module(x, mask=mask)
    alone = module(x[1:, :3])
    assert_exact(output[1:, :3], alone)
    assert bool((output[1, 3:] == 0).all())


@pytest.mark.parametrize("form", ["causal", "causal_dependent"])
@pytest.mark.parametrize("name", ["cosine", "elu", "polynomial"])
def test_steps_equal_the_parallel_form(form: str, name: str) -> None:
    module = PrimalAttention(8, heads=2, rank=3, feature_map=name, **FORMS[form]).double()
    x, mask = points(3, 13, 8), keep([13, 6, 0], 13)
    mask[0, 4] = False
    state, outputs = module.start(3), []
    for t in range(13):
        output, state = module.step(x[:, t], state, mask=mask[:, t])
        outputs.append(output)
    assert_exact(torch.stack(outputs, 1), module(x, mask=mask))
    assert state.left.shape == module.start(3).left.shape


@pytest.mark.parametrize("form", ["causal", "causal_dependent"])
def test_a_later_point_moves_no_earlier_output(form: str) -> None:
    module, x = layer(form), points(2, 300, 8)
    changed = x.clone()
    changed[:, 200:] = 1e3
    assert torch.equal(module(x)[:, :200], module(changed)[:, :200])


def test_the_prefix_of_as_many_points_as_landmarks_is_the_whole() -> None:
    module, whole = layer("causal_dependent"), layer("dependent")
    x = points(2, 5, 8)
    assert_exact(module(x)[:, -1], whole(x)[:, -1])


@forms
@pytest.mark.parametrize("garbage", [1e30, float("nan"), float("inf")], ids=str)
def test_padding_has_no_influence(form: str, garbage: float) -> None:
    module, mask = layer(form), keep([7, 4, 0], 7)
    mask[0, 2] = False
    results = []
    for filling in (0.0, garbage):
        x = points(3, 7, 8).masked_fill(~mask[..., None], filling).requires_grad_()
        with record(module) as tape:
            output = module(x, mask=mask)
        moments = tape.last("").moments
        loss = (
            output.square().sum() + moments.left.sum() + moments.right.sum() + moments.projected_trace.sum()
        )
        gradients = torch.autograd.grad(loss, [x, *module.parameters()], allow_unused=True)
        results.append([output, moments.left, moments.right, *(g for g in gradients if g is not None)])
    for clean, dirty in zip(*results, strict=True):
        assert torch.equal(clean, dirty)
    assert bool((results[0][0][2] == 0).all())


@forms
def test_padding_equals_leaving_out(form: str) -> None:
    module, x = layer(form), points(1, 9, 8)
    mask = torch.tensor([[False, True, True, False, True, True, True, False, False]])
    assert_exact(module(x, mask=mask)[mask], module(x[mask][None])[0])


@given(n=st.integers(1, 9), seed=st.integers(0, 99))
def test_a_batch_of_one_equals_a_slice(n: int, seed: int) -> None:
    for form in FORMS:
        module, x = layer(form), points(3, n, 8, seed=seed)
        assert_exact(module(x)[1:2], module(x[1:2]))


def test_moving_points_moves_outputs_of_the_pointwise_form() -> None:
    module, x, order = layer("independent"), points(2, 6, 8), torch.tensor([3, 1, 5, 0, 2, 4])
    assert_exact(module(x)[:, order], module(x[:, order]))


@forms
@pytest.mark.parametrize("n", [1, 4, 7])
def test_gradients(form: str, n: int) -> None:
    module, mask = layer(form, rank=2), keep([n, max(1, n - 2)], n)
    names = [name for name, _ in module.named_parameters()]

    def run(x: Tensor, *weights: Tensor) -> tuple[Tensor, ...]:
        with record(module) as tape:
            given = dict(zip(names, weights, strict=True))
            output = torch.func.functional_call(module, given, (x,), {"mask": mask})
        moments = tape.last("").moments
        return output, moments.left, moments.right, moments.values, moments.trace, moments.projected_trace

    inputs = [points(2, n, 8).requires_grad_(), *(p.detach().requires_grad_() for p in module.parameters())]
    assert torch.autograd.gradcheck(run, inputs, atol=1e-6, rtol=1e-4, fast_mode=True)


@pytest.mark.parametrize("form", ["causal", "causal_dependent"])
def test_gradients_through_steps(form: str) -> None:
    module, x = layer(form), points(1, 6, 8)
    parallel = torch.autograd.grad(module(x).square().sum(), list(module.parameters()), allow_unused=True)
    state, total = module.start(1), x.new_zeros(())
    for t in range(6):
        output, state = module.step(x[:, t], state)
        total = total + output.square().sum()
    stepped = torch.autograd.grad(total, list(module.parameters()), allow_unused=True)
    for one, other in zip(parallel, stepped, strict=True):
        assert (one is None) == (other is None)
        if one is not None:
            assert_exact(one, other)


@forms
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_lower_precision_keeps_to_the_oracle(form: str, dtype: torch.dtype) -> None:
    low = layer(form).to(dtype)
    x = points(2, 7, 8, dtype=dtype)
    # The same rounded weights and input, computed in float64.
    high = copy.deepcopy(low).double()
    expected = oracle(high, x.double()).output
    output = low(x)
    assert output.dtype == dtype
    assert_within(output, eager=_plainly(low, x), oracle=expected)


def _plainly(module: PrimalAttention, x: Tensor) -> Tensor:
    """The layer by scores, step by step in the input's precision."""
    heads, b, n = module.heads, *x.shape[:2]
    query, key, rows = (
        side.view(b, n, heads, -1).transpose(1, 2) for side in (module.query(x), module.key(x), x)
    )
    if module.causal and module.landmarks is None:
        count = torch.arange(1, n + 1)[:, None]
        query, key = ((side.float().cumsum(2) / count).to(x.dtype) for side in (query, key))
    query, key = (torch.nn.functional.normalize(side, dim=-1) for side in (query, key))
    left, right = module.left, module.right
    if module.landmarks is not None and not module.causal:
        index = torch.linspace(0, n - 1, module.landmarks, dtype=torch.int64)
        left, right = rows[:, :, index].mT @ left, rows[:, :, index].mT @ right
    if module.landmarks is not None and module.causal:
        slots = torch.arange(n) % module.landmarks
        seen = torch.arange(1, n + 1)
        growth = (seen.clamp_max(module.landmarks) / seen)[:, None].to(x.dtype)
        sides = ((query, left), (key, right))
        scores = [(side @ rows.mT).tril() @ weight[:, slots] * growth for side, weight in sides]
    else:
        scores = [query @ left, key @ right]
    joined = module.join(torch.cat(scores, -1))
    return module.out(joined.transpose(1, 2).flatten(2))


# Not the causal data-dependent form: its weights differ from point to point, so its output needs the scores.
@pytest.mark.parametrize("form", ["dependent", "independent", "causal"])
def test_nothing_as_wide_as_the_scores_is_kept_for_the_penalty(form: str) -> None:
    module = PrimalAttention(32, heads=2, rank=11, **FORMS[form])
    kept: list[torch.Size] = []

    def note(tensor: Tensor) -> Tensor:
        kept.append(tensor.shape)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor), record(module) as tape:
        module(torch.randn(2, 50, 32)).sum()
        assert len(tape) == 1
    assert not [shape for shape in kept if shape[-2:] == (50, 11)]


def test_at_the_optimum_the_pattern_is_the_kernel_svd() -> None:
    module, x = layer("independent", rank=3), points(1, 12, 8)
    with record(module, patterns=True) as tape:
        module(x)
    kernel = tape.last("").kernel
    exact = ksvd(kernel.left[0], kernel.right[0], rank=3)
    with torch.no_grad():
        module.left.copy_(kernel.right[0].mT @ exact.right)
        module.right.copy_(kernel.left[0].mT @ exact.left)
        module.root.copy_((12 / exact.values).sqrt())
    with record(module, patterns=True) as tape:
        module(x)
    call = tape.last("")
    assert_exact(call.pattern.matrix()[0], exact.pattern().matrix())
    assert ksvd_penalty(tape, reduction="batch").item() < 1e-24


@forms
def test_weights_start_orthonormal_or_as_published(form: str) -> None:
    ours, published = layer(form), layer(form, init="published")
    gram = ours.left.mT @ ours.left
    assert torch.allclose(gram, torch.eye(3, dtype=torch.float64).expand_as(gram), atol=1e-6)
    flat = published.left.flatten(1)
    assert torch.allclose(flat @ flat.mT, torch.eye(2, dtype=torch.float64), atol=1e-6)


@pytest.mark.parametrize("form", ["dependent", "independent"])
def test_a_few_points_at_a_time_give_the_same_output(form: str) -> None:
    module, x, mask = layer(form), points(2, 1100, 8), keep([1100, 700], 1100)
    whole = module(x, mask=mask)
    with torch.no_grad():
        assert_exact(module(x, mask=mask), whole.detach())
        assert_exact(module(x), module(x.clone().requires_grad_()))


def test_a_projection_that_someone_changed_is_called() -> None:
    module, x = layer("dependent"), points(2, 5, 8)
    plain = module(x)
    handle = module.key.register_forward_hook(lambda _module, _inputs, output: output * 2)
    assert_exact(module(x), plain)  # the cosine map forgets the length of a key
    handle.remove()
    module.query = torch.nn.Sequential(module.query, torch.nn.Tanh())
    assert not torch.allclose(module(x), plain)


def test_names_and_shapes_of_parameters() -> None:
    shapes = {
        name: tuple(p.shape)
        for name, p in PrimalAttention(8, heads=2, rank=3, landmarks=5).named_parameters()
    }
    assert shapes == {
        "left": (2, 5, 3),
        "right": (2, 5, 3),
        "root": (2, 3),
        "query.weight": (8, 8),
        "query.bias": (8,),
        "key.weight": (8, 8),
        "key.bias": (8,),
        "join.weight": (4, 6),
        "join.bias": (4,),
        "out.weight": (8, 8),
        "out.bias": (8,),
    }
    assert PrimalAttention(8, heads=2, rank=3).left.shape == (2, 4, 3)
    assert "rank=3, landmarks=None" in repr(PrimalAttention(8, heads=2, rank=3))


def test_a_random_map_travels_with_the_weights() -> None:
    one = PrimalAttention(8, heads=2, rank=3, feature_map="exponential", seed=1).double()
    other = PrimalAttention(8, heads=2, rank=3, feature_map="exponential", seed=2).double()
    x = points(1, 4, 8)
    assert not torch.equal(one(x), other(x))
    other.load_state_dict(one.state_dict())
    assert torch.equal(one(x), other(x))


def test_a_kernel_object_serves_as_a_map() -> None:
    kernel = Exponential(draw_frequencies(6, 4, torch.Generator().manual_seed(3)))
    assert PrimalAttention(8, heads=2, rank=3, feature_map=kernel).left.shape == (2, 6, 3)
    with pytest.raises(BadInput, match="frequencies are 4 wide, but points are 8"):
        PrimalAttention(8, heads=1, rank=3, feature_map=kernel)


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        (
            {"width": 8, "heads": 2, "rank": 2, "landmarks": 4, "modes": 5},
            BadInput,
            "5 modes of 4 landmarks, expected at most as many",
        ),
        ({"width": 8, "heads": 2, "rank": 2, "modes": 2}, BadInput, "2 modes of None landmarks"),
        ({"width": 10, "heads": 4, "rank": 2}, BadInput, "width 10 does not split into 4 heads"),
        ({"width": 8, "heads": 0, "rank": 2}, BadInput, "heads is 0, expected a whole number of at least 1"),
        ({"width": 8, "heads": 2, "rank": 0}, BadInput, "rank is 0, expected a whole number of at least 1"),
        ({"width": 8, "heads": 2, "rank": 2.5}, BadInput, "rank is 2.5, expected a whole number"),
        ({"width": 8, "heads": 2, "rank": 2, "landmarks": -1}, BadInput, "landmarks is -1"),
        ({"width": 8, "heads": 2, "rank": 2, "feature_map": "cosin"}, UnknownName, "did you mean 'cosine'"),
        ({"width": 8, "heads": 2, "rank": 2, "join": "share"}, UnknownName, "did you mean 'shared'"),
        (
            {"width": 8, "heads": 2, "rank": 2, "init": "orthonormall"},
            UnknownName,
            "did you mean 'orthonormal'",
        ),
    ],
)
def test_bad_options_are_named(options: dict[str, object], error: type[Exception], words: str) -> None:
    width = options.pop("width")
    with pytest.raises(error, match=words):
        PrimalAttention(width, **options)


@pytest.mark.parametrize("form", ["dependent", "causal_dependent"])
def test_modes_are_slow_weights_of_all_slots(form: str) -> None:
    smooth, free = layer(form, modes=2), layer(form)
    x, mask = points(3, 9, 8), keep([9, 4, 1], 9)
    with torch.no_grad():
        for name in ("left", "right"):
            getattr(free, name).copy_(getattr(smooth, name))
    rest = {name: weight for name, weight in smooth.state_dict().items() if "parametrizations" not in name}
    free.load_state_dict(rest, strict=False)
    assert_exact(smooth(x, mask=mask), free(x, mask=mask))
    assert_exact(smooth(x, mask=mask), oracle(smooth, x, mask=mask).output)
    assert smooth.left.shape == free.left.shape
    slots = smooth.left.shape[-2]
    wave = torch.cos(torch.pi * (torch.arange(slots) + 0.5) / slots).double()[:, None]
    both = torch.cat([torch.ones_like(wave), wave], dim=1)
    left = smooth.left.detach()
    gap = left - both @ torch.linalg.lstsq(both.expand(2, -1, -1), left).solution
    assert float(gap.abs().max()) < 1e-6  # cosines are kept in float32 until the layer is made double


def test_modes_travel_with_the_weights_and_learn() -> None:
    one, other = layer("dependent", modes=2), layer("dependent", modes=2)
    x = points(2, 6, 8)
    with torch.no_grad():
        for weight in other.parameters():
            weight.add_(1)
    other.load_state_dict(one.state_dict())
    assert torch.equal(one(x), other(x))
    assert torch.equal(copy.deepcopy(one)(x), one(x))
    with record(one) as tape:
        loss = one(x).square().mean()
    (loss + ksvd_penalty(tape)).backward()
    assert all(weight.grad is not None for weight in one.parameters())
    assert sum(weight.numel() for weight in one.parameters()) < sum(
        weight.numel() for weight in layer("dependent").parameters()
    )


def test_bad_calls_are_named() -> None:
    module, x = layer("dependent"), points(2, 5, 8)
    with pytest.raises(BadInput, match=r"`x` has shape \(2, 5, 6\), expected \(b, n, 8\)"):
        module(points(2, 5, 6))
    with pytest.raises(BadInput, match=r"\(2, 0, 8\) is an empty sequence"):
        module(x[:, :0])
    with pytest.raises(BadInput, match=r"`mask` is torch[.]float32, expected torch[.]bool"):
        module(x, mask=torch.ones(2, 5))
    with pytest.raises(ShapeError, match=r"`mask` has shape \(2, 4\), expected \(2, 5\)"):
        module(x, mask=keep([4, 4], 4))
    with pytest.raises(BadInput, match="`context_mask` was given without `context`"):
        module(x, context_mask=keep([5, 5], 5))
    with pytest.raises(ShapeError, match="axis `b` is 2 in `x` but 3 in `context`"):
        module(x, context=points(3, 4, 8))
    with pytest.raises(BadInput, match="a layer that is without landmarks"):
        layer("independent")(x, context=x)
    with pytest.raises(BadInput, match="a layer that is causal"):
        layer("causal_dependent")(x, context=x)
    with pytest.raises(BadInput, match="start and step need causal=True"):
        module.start(2)
    causal = layer("causal")
    with pytest.raises(BadInput, match="start and step need causal=True"):
        module.step(x[:, 0], causal.start(2))
    with pytest.raises(BadInput, match=r"`x` has shape \(2, 8\), expected \(3, 8\)"):
        causal.step(x[:, 0], causal.start(3))


@pytest.mark.parametrize("hook", ["forward", "forward_pre", "full_backward"])
def test_a_hook_on_a_projection_is_called_once(hook: str) -> None:
    module, x, calls = layer("dependent"), points(1, 1100, 8).requires_grad_(), []
    getattr(module.query, f"register_{hook}_hook")(lambda *_: calls.append(hook))
    module(x).sum().backward()
    assert calls == [hook]
    if hook != "full_backward":
        with torch.no_grad():
            module(x)
        assert calls == [hook, hook]


def test_a_hook_on_the_output_is_called_once_for_all_points() -> None:
    module, shapes = layer("dependent"), []
    module.out.register_forward_hook(lambda _module, _inputs, output: shapes.append(output.shape))
    with torch.no_grad():
        module(points(1, 1100, 8))
    assert shapes == [(1, 1100, 8)]


def test_a_projection_without_bias_is_called() -> None:
    module = layer("dependent")
    module.query = torch.nn.Linear(8, 8, bias=False).double()
    assert module(points(2, 5, 8)).shape == (2, 5, 8)


def test_the_cache_of_indices_keeps_no_fake_tensor() -> None:
    module, x = layer("dependent"), points(2, 41, 8)
    with FakeTensorMode(allow_non_fake_inputs=True):
        module(points(2, 41, 8))
    assert type(module(x)) is Tensor


@pytest.mark.parametrize(("n", "m"), [(1, 1), (2, 7), (7, 3)])
@pytest.mark.parametrize("join", ["shared", "per_head"])
def test_gradients_across_two_sequences(n: int, m: int, join: str) -> None:
    module = layer("dependent", rank=2, join=join)
    masks = {"mask": keep([n, max(1, n - 1)], n), "context_mask": keep([m, max(1, m - 1)], m)}
    names = [name for name, _ in module.named_parameters()]

    def run(x: Tensor, context: Tensor, *weights: Tensor) -> tuple[Tensor, ...]:
        with record(module) as tape:
            given = dict(zip(names, weights, strict=True))
            output = torch.func.functional_call(module, given, (x,), {"context": context, **masks})
        moments = tape.last("").moments
        return output, moments.left, moments.right, moments.values, moments.trace, moments.projected_trace

    sides = [points(2, n, 8).requires_grad_(), points(2, m, 8, seed=1).requires_grad_()]
    weights = [p.detach().requires_grad_() for p in module.parameters()]
    assert torch.autograd.gradcheck(run, [*sides, *weights], atol=1e-6, rtol=1e-4, fast_mode=True)


@pytest.mark.parametrize("join", ["shared", "per_head"])
@pytest.mark.parametrize("landmarks", [None, 5])
def test_inference_folds_the_join_into_the_out_projection(join: str, landmarks: int | None) -> None:
    layer = PrimalAttention(12, heads=2, rank=3, landmarks=landmarks, join=join).double()
    x, mask = points(3, 600, 12), keep([600, 400, 1], 600)
    expected = layer(x, mask=mask)
    with torch.no_grad():
        assert layer._folded(x) is not None
        assert_exact(layer(x, mask=mask), expected)


def test_what_is_hooked_is_not_folded() -> None:
    layer, x = PrimalAttention(12, heads=2, rank=3), points(2, 600, 12, dtype=torch.float32)
    with torch.no_grad():
        plain = layer(x)
        for part in (layer.out, layer.join):
            hook = part.register_forward_hook(lambda *_: None)
            assert layer._folded(x) is None
            torch.testing.assert_close(layer(x), plain)
            hook.remove()
    assert layer._folded(x) is None
    with torch.no_grad():
        assert PrimalAttention(12, heads=2, rank=4)._folded(x) is None
        assert layer._folded(x[:, :100]) is None
