"""rpc_attention and its beside: its answer, its laws, its gradients, its cost, its words."""

from dataclasses import asdict, replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from kernelhead.errors import BadInput, ShapeError, UnknownName
from kernelhead.ops import (
    Pursuit,
    rpc_attention,
    rpc_bounds,
    rpc_pattern,
    rpc_start,
    rpc_step,
    rpc_trace,
    softmax_attention,
    softmax_pattern,
)
from kernelhead.ops.eager import rpc as eager
from kernelhead.rng import seeded
from tests.inputs import keep, points
from tests.oracles import rpc as oracles
from tests.tolerance import assert_exact, assert_within

PREFIX = Pursuit.corrected(3, scope="prefix")
FORMS = {
    "published": (Pursuit.published(4, 1.0), {}),
    "corrected": (Pursuit.corrected(), {}),
    "journal sign alone": (Pursuit(3, 0.5, sign="journal"), {}),
    "over mu alone": (Pursuit(3, 4.0, threshold="over_mu"), {}),
    "head width alone": (Pursuit(3, 1.0, width="head"), {}),
    "masked": (Pursuit.published(3, 0.5), {"mask": keep([6, 3], 6)}),
    "asymmetric": (Pursuit.corrected(3), {"query": points(2, 2, 6, 3, seed=9)}),
    "causal": (Pursuit.published(3, 1.0), {"causal": True}),
    "prefix": (PREFIX, {"causal": True}),
    "prefix, published": (Pursuit.published(3, 0.5, scope="prefix"), {"causal": True}),
    "prefix, masked": (PREFIX, {"causal": True, "mask": keep([6, 3], 6)}),
    "asymmetric prefix": (PREFIX, {"causal": True, "query": points(2, 2, 6, 3, seed=9)}),
}
forms = pytest.mark.parametrize(("pursuit", "how"), FORMS.values(), ids=FORMS)
How = dict[str, object]


def sides(n: int = 6, *, seed: int = 0, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    return points(2, 2, n, 3, seed=seed, dtype=dtype), points(2, 2, n, 3, seed=seed + 1, dtype=dtype)


@pytest.mark.parametrize("strength", [0.0, 0.5, 1.0, 4.0])
@pytest.mark.parametrize("iterations", [1, 2, 4, 6])
@pytest.mark.parametrize("make", [Pursuit.published, Pursuit.corrected])
def test_the_recurrence_is_the_listing(make: object, iterations: int, strength: float) -> None:
    key, value = sides()
    pursuit = make(iterations, strength)  # type: ignore[operator]
    expected = oracles.rpc_attention(key, value, **asdict(pursuit))
    assert_exact(rpc_attention(key, value, pursuit=pursuit), expected)


@forms
def test_every_switch_is_the_listing(pursuit: Pursuit, how: How) -> None:
    key, value = sides()
    expected = oracles.rpc_attention(key, value, **asdict(pursuit), **how)
    assert_exact(rpc_attention(key, value, pursuit=pursuit, **how), expected)


@forms
def test_gradients_are_those_of_the_listing(pursuit: Pursuit, how: How) -> None:
    held = [side.requires_grad_() for side in sides()]
    weight = points(2, 2, 6, 3, seed=5)
    made = rpc_attention(*held, pursuit=pursuit, **how)
    plain = oracles.unrolled(*held, **asdict(pursuit), **how)
    assert_exact(plain, oracles.rpc_attention(*held, **asdict(pursuit), **how))
    grads = (torch.autograd.grad((output * weight).sum(), held) for output in (made, plain))
    for one, other in zip(*grads, strict=True):
        assert_exact(one, other)


@pytest.mark.parametrize("strength", [0.5, 1.0, 4.0])
@pytest.mark.parametrize("iterations", [1, 2, 4, 6])
def test_published_gradients(iterations: int, strength: float) -> None:
    held = [side.requires_grad_() for side in sides(7, seed=3)]
    pursuit = Pursuit.published(iterations, strength)
    made, plain = rpc_attention(*held, pursuit=pursuit), oracles.unrolled(*held, **asdict(pursuit))
    grads = (torch.autograd.grad(output.square().sum(), held) for output in (made, plain))
    for one, other in zip(*grads, strict=True):
        assert_exact(one, other)


@forms
def test_gradcheck(pursuit: Pursuit, how: How) -> None:
    held = [side.requires_grad_() for side in sides()]
    run = lambda key, value: rpc_attention(key, value, pursuit=replace(pursuit, iterations=2), **how)  # noqa: E731
    assert torch.autograd.gradcheck(run, held)


@pytest.mark.parametrize("preprint", [True, False])
@pytest.mark.parametrize("last", [True, False])
def test_the_kept_byte_gives_the_gradients_of_the_definition(last: bool, preprint: bool) -> None:
    key, state, low = (points(2, 2, 5, 3, seed=i).requires_grad_() for i in range(3))
    bound = points(2, 2, 5, 1, seed=3).abs().requires_grad_()
    weights = points(2, 2, 5, 3, seed=4), points(2, 2, 5, 3, seed=5)
    made = eager.update(key, (state, low), bound, preprint, last)
    plain = eager.definition(key, (state, low), bound, preprint)
    grads = []
    for new, keys in (made, plain):
        worth = (keys * weights[0]).sum() + (0 if last else (new * weights[1]).sum())
        grads.append(torch.autograd.grad(worth, (key, state, low, bound)))
    for one, other in zip(*grads, strict=True):
        assert_exact(one, other)
    assert torch.autograd.gradgradcheck(
        lambda *args: eager.update(args[0], args[1:3], args[3], preprint, last)[1], (key, state, low, bound)
    )


def test_bounds_of_many_points_are_as_exact_as_of_few() -> None:
    key = points(1, 1, 2**17, 8, dtype=torch.float32)
    exact = eager.bounds(key.double(), None, Pursuit.corrected())
    made = eager.bounds(key, None, Pursuit.corrected())
    assert float((made / exact - 1).abs()) < 4 * torch.finfo(torch.float32).eps


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("pursuit", [Pursuit.published(4, 1.0), Pursuit.corrected()], ids=["old", "new"])
def test_lower_precision(pursuit: Pursuit, dtype: torch.dtype) -> None:
    key, value = (points(16, 2, 33, 8, seed=i, dtype=dtype) for i in range(2))
    oracle = oracles.unrolled(key.double(), value.double(), **asdict(pursuit))
    plain = oracles.unrolled(key, value, **asdict(pursuit))
    made = rpc_attention(key, value, pursuit=pursuit)
    assert made.dtype == dtype
    assert_within(made, eager=plain, oracle=oracle)


@pytest.mark.parametrize("make", [Pursuit.published, Pursuit.corrected])
def test_one_iteration_is_symmetric_attention_on_clipped_keys(make: object) -> None:
    key, value = sides()
    pursuit = make(1, 0.5)  # type: ignore[operator]
    bound = rpc_bounds(key, pursuit=pursuit)
    clipped = key.clamp(-bound, bound)
    assert 0 < (clipped != key).sum() < key.numel()
    made = rpc_attention(key, value, pursuit=pursuit)
    assert torch.equal(made, softmax_attention(clipped, clipped, value))


def test_without_strength_one_iteration_is_the_mean() -> None:
    key, value = sides()
    made = rpc_attention(key, value, pursuit=Pursuit.published(1, 0.0))
    assert_exact(made, value.mean(-2, keepdim=True).expand_as(value))


def test_what_is_within_the_bound_attends_by_its_output() -> None:
    key, value = sides()
    pursuit = Pursuit.published(2, 1e3)
    low = softmax_attention(key, key, value)
    assert_exact(rpc_attention(key, value, pursuit=pursuit), softmax_attention(low, low, value), bound=1e-9)


@given(scale=st.floats(0.1, 10.0), seed=st.integers(0, 99))
def test_corrected_pursuit_scales_with_its_input(scale: float, seed: int) -> None:
    key, value = sides(4, seed=seed)
    pursuit = Pursuit.corrected(3)
    assert_exact(rpc_bounds(scale * key, pursuit=pursuit), scale * rpc_bounds(key, pursuit=pursuit))
    # Keys, values and tau grow together; only the temperature of the softmax stays behind.
    same = oracles.rpc_attention(key, value, **asdict(pursuit), scale=scale**2 / 3**0.5)
    assert_exact(rpc_attention(scale * key, scale * value, pursuit=pursuit), scale * same, bound=1e-8)


@given(scale=st.floats(0.1, 10.0), seed=st.integers(0, 99))
def test_published_pursuit_clips_large_keys_harder(scale: float, seed: int) -> None:
    key, _ = sides(4, seed=seed)
    pursuit = Pursuit.published()
    assert_exact(rpc_bounds(scale * key, pursuit=pursuit), rpc_bounds(key, pursuit=pursuit) / scale)


def test_bounds_by_hand() -> None:
    key = torch.tensor([1.0, -3.0, 2.0]).double()[None, None, :, None].expand(1, 2, 3, 4)
    assert rpc_bounds(key, pursuit=Pursuit.published(1, 4.0)).flatten().tolist() == [1.0, 1.0]
    assert rpc_bounds(key, pursuit=Pursuit.corrected(1, 0.5)).flatten().tolist() == [4.0, 4.0]
    prefix = rpc_bounds(key, pursuit=Pursuit.corrected(1, 0.5, scope="prefix"), mask=keep([3], 3))
    assert prefix[0, 0].flatten().tolist() == [2.0, 4.0, 4.0]
    padded = rpc_bounds(key, pursuit=Pursuit.corrected(1, 0.5), mask=torch.tensor([[False, True, False]]))
    assert padded[0, 0].item() == 6


def test_zero_keys() -> None:
    key, value = torch.zeros(1, 1, 3, 2, dtype=torch.float64, requires_grad=True), points(1, 1, 3, 2)
    assert oracles.rpc_attention(key, value, **asdict(Pursuit.published(2))).isnan().all()
    for pursuit in (Pursuit.corrected(3), Pursuit.published(3, guard=1e-6)):
        made = rpc_attention(key, value, pursuit=pursuit)
        (grad,) = torch.autograd.grad(made.square().sum(), key)
        assert made.isfinite().all()
        assert grad.isfinite().all()
    made = rpc_attention(key, value, pursuit=Pursuit.published(3))
    (grad,) = torch.autograd.grad(made.square().sum(), key)
    assert grad.isnan().all()


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("make", [Pursuit.published, Pursuit.corrected])
def test_the_last_point_moves_no_bit_before_it(make: object, masked: bool) -> None:
    key, value = sides(9)
    pursuit = make(4, 1.0, scope="prefix")  # type: ignore[operator]
    how = {"causal": True, "mask": keep([9, 9], 9) if masked else None}
    before = rpc_attention(key, value, pursuit=pursuit, **how)
    key, value = key.clone(), value.clone()
    key[:, :, -1], value[:, :, -1] = 100.0, -7.0
    after = rpc_attention(key, value, pursuit=pursuit, **how)
    assert torch.equal(before[:, :, :-1], after[:, :, :-1])
    assert not torch.equal(before[:, :, -1], after[:, :, -1])
    leaky = replace(pursuit, scope="sequence")
    whole = rpc_attention(key, value, pursuit=leaky, **how)
    assert not torch.allclose(before[:, :, :-1], whole[:, :, :-1])


@pytest.mark.parametrize("how", ["plain", "padded in front", "padded", "asymmetric"])
@pytest.mark.parametrize("cuts", [[1] * 7, [3, 1, 2, 1], [7]], ids=str)
@pytest.mark.parametrize("make", [Pursuit.published, Pursuit.corrected])
def test_decoding_equals_the_parallel_form(make: object, cuts: list[int], how: str) -> None:
    key, value = sides(7)
    mask = {"padded": keep([7, 4], 7), "padded in front": keep([7, 4], 7).flip(-1)}.get(how)
    query = points(2, 2, 7, 3, seed=8) if how == "asymmetric" else None
    pursuit = make(3, 1.0, scope="prefix")  # type: ignore[operator]
    whole = rpc_attention(key, value, pursuit=pursuit, query=query, mask=mask, causal=True)
    state, pieces = rpc_start(2, 2, 3, pursuit=pursuit, dtype=key.dtype), []
    for at, (k, v) in enumerate(zip(key.split(cuts, 2), value.split(cuts, 2), strict=True)):
        here = slice(sum(cuts[:at]), sum(cuts[: at + 1]))
        given = {"query": None if query is None else query[:, :, here]}
        # A mask may appear only once a point is padded.
        if mask is not None and not mask[:, here].all():
            given["mask"] = mask[:, here]
        output, state = rpc_step(k, v, state, pursuit=pursuit, **given)
        pieces.append(output)
    assert_exact(torch.cat(pieces, dim=2), whole)
    assert state.seen.tolist() == ([7, 7] if mask is None else [7, 4])


@pytest.mark.parametrize(("pursuit", "causal"), [(Pursuit.published(3), False), (PREFIX, True)])
@pytest.mark.parametrize("asymmetric", [False, True])
def test_padding_has_no_influence(pursuit: Pursuit, causal: bool, asymmetric: bool) -> None:
    lengths, mask = [6, 3], torch.stack([keep([6], 6)[0], keep([3], 6)[0].flip(0)])
    key, value = sides()
    tensors = [key, value, *([points(2, 2, 6, 3, seed=9)] if asymmetric else [])]
    outputs, grads = [], []
    for filler in (0.0, torch.nan):
        held = [each.where(mask[:, None, :, None], filler).requires_grad_() for each in tensors]
        query = held[2] if asymmetric else None
        made = rpc_attention(*held[:2], pursuit=pursuit, query=query, mask=mask, causal=causal)
        outputs.append(made)
        grads.append(torch.autograd.grad(made.square().sum(), held))
    assert torch.equal(*outputs)
    assert (outputs[0].masked_select(~mask[:, None, :, None]) == 0).all()
    for one, other in zip(*grads, strict=True):
        assert torch.equal(one, other)
        assert (one.masked_select(~mask[:, None, :, None]) == 0).all()
    for row, length in enumerate(lengths):
        short = [each[row : row + 1, :, 6 - length :] for each in tensors]
        query = short[2] if asymmetric else None
        alone = rpc_attention(*short[:2], pursuit=pursuit, query=query, causal=causal)
        assert_exact(outputs[0][row : row + 1, :, 6 - length :], alone)


@pytest.mark.parametrize(("pursuit", "causal"), [(Pursuit.published(3), False), (PREFIX, True)])
def test_a_row_without_real_points_is_zero(pursuit: Pursuit, causal: bool) -> None:
    held = [side.requires_grad_() for side in sides()]
    made = rpc_attention(*held, pursuit=pursuit, mask=keep([6, 0], 6), causal=causal)
    assert (made[1] == 0).all()
    assert all((grad[1] == 0).all() for grad in torch.autograd.grad(made.sum(), held))


@given(n=st.integers(1, 8), seed=st.integers(0, 999))
def test_moving_points_moves_outputs(n: int, seed: int) -> None:
    key, value = sides(n, seed=seed)
    order = torch.randperm(n, generator=torch.Generator().manual_seed(seed))
    made = rpc_attention(key, value, pursuit=Pursuit.corrected(3))
    moved = rpc_attention(key[:, :, order], value[:, :, order], pursuit=Pursuit.corrected(3))
    assert_exact(moved, made[:, :, order], bound=1e-9)


def test_only_the_last_pattern_is_dropped() -> None:
    key, value = sides()
    pursuit = Pursuit.corrected(2)
    first = rpc_attention(key, value, pursuit=replace(pursuit, iterations=1))
    _, keys = eager.definition(
        key,
        (eager.definition(key, None, rpc_bounds(key, pursuit=pursuit), False)[0], first),
        rpc_bounds(key, pursuit=pursuit),
        False,
    )
    with seeded(0):
        made = rpc_attention(key, value, pursuit=pursuit, dropout=0.5)
    with seeded(0):
        expected = softmax_attention(keys, keys, value, dropout=0.5)
    assert_exact(made, expected)
    before = torch.random.get_rng_state()
    rpc_attention(key, value, pursuit=pursuit)
    assert torch.equal(before, torch.random.get_rng_state())


@forms
def test_the_pattern_is_what_the_last_iteration_applies(pursuit: Pursuit, how: How) -> None:
    key, value = sides()
    pattern = rpc_pattern(key, value, pursuit=pursuit, **how)
    real = how.get("mask", keep([6, 6], 6))[:, None, :, None]
    assert_exact(pattern @ value * real, rpc_attention(key, value, pursuit=pursuit, **how))
    assert_exact(pattern.sum(-1), torch.ones_like(pattern[..., 0]))


@pytest.mark.parametrize("make", [Pursuit.published, Pursuit.corrected])
@pytest.mark.parametrize("causal", [False, True])
def test_a_trace_is_the_listing(causal: bool, make: object) -> None:
    key, value = sides()
    pursuit = make(3, 0.5)  # type: ignore[operator]
    trace = rpc_trace(key, value, pursuit=pursuit, causal=causal)
    assert (
        trace.nonzero.shape == trace.size.shape == trace.diagonal.shape == trace.residual.shape == (3, 2, 2)
    )
    bound = rpc_bounds(key, pursuit=pursuit)
    clipped = key.clamp(-bound, bound)
    sparse = key - clipped
    low = softmax_attention(clipped, clipped, value, causal=causal)
    assert_exact(trace.nonzero[0], (sparse != 0).double().mean((-2, -1)).to(key.dtype))
    assert_exact(trace.size[0], clipped.abs().mean((-2, -1)))
    pattern = softmax_pattern(clipped, clipped, causal=causal)
    assert_exact(trace.diagonal[0], pattern.diagonal(dim1=-2, dim2=-1).mean(-1))
    assert_exact(trace.residual[0], (clipped - low).norm(dim=(-2, -1)) / key.norm(dim=(-2, -1)))
    # The keys of the third iteration, by the recurrence.
    state, keys = eager.definition(key, None, bound, pursuit.sign == "preprint")
    for _ in range(2):
        low = softmax_attention(keys, keys, value, causal=causal)
        state, keys = eager.definition(key, (state, low), bound, pursuit.sign == "preprint")
    assert_exact(trace.size[2], keys.abs().mean((-2, -1)))


def test_a_trace_counts_real_points() -> None:
    key, value = sides()
    how = {"pursuit": PREFIX, "causal": True, "query": points(2, 2, 6, 3, seed=9)}
    trace = rpc_trace(key, value, mask=keep([4, 0], 6), **how)
    short = {**how, "query": how["query"][:, :, :4]}
    alone = rpc_trace(key[:, :, :4], value[:, :, :4], **short)
    for name in ("nonzero", "size", "diagonal", "residual"):
        assert_exact(getattr(trace, name)[:, 0], getattr(alone, name)[:, 0])
        assert (getattr(trace, name)[:, 1] == 0).all()


def saved(run: object) -> int:
    """Bytes of all storages that autograd keeps for the backward pass."""
    sizes: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        sizes[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        held = run()  # type: ignore[operator]
    return sum(sizes.values()) if held is not None else 0


@pytest.mark.parametrize("make", [Pursuit.published, Pursuit.corrected])
def test_less_than_a_third_is_kept_for_backward(make: object) -> None:
    key, value = (points(2, 3, 197, 64, seed=i, dtype=torch.float32).requires_grad_() for i in range(2))
    pursuit = make(4)  # type: ignore[operator]
    lean = saved(lambda: rpc_attention(key, value, pursuit=pursuit))
    naive = saved(lambda: oracles.unrolled(key, value, **asdict(pursuit)))
    # Key and value, keys and output of every attention, one byte an entry of every update, and dust.
    assert lean < (10 + 4 / 4 + 0.4) * key.nbytes
    assert lean < naive / 3


@pytest.mark.plain
@pytest.mark.parametrize("name", ["published", "prefix, masked"])
def test_compiled(name: str) -> None:
    held, (pursuit, how) = [side.requires_grad_() for side in sides()], FORMS[name]

    def run(key: Tensor, value: Tensor) -> Tensor:
        return rpc_attention(key, value, pursuit=pursuit, **how).square().sum()

    compiled = torch.compile(run, fullgraph=True, backend="aot_eager")
    grads = (torch.autograd.grad(each(*held), held) for each in (compiled, run))
    for one, other in zip(*grads, strict=True):
        assert_exact(one, other)


def test_words() -> None:
    key, value = sides()
    pursuit = Pursuit.corrected(2, scope="prefix")
    with pytest.raises(ShapeError, match=r"rpc_attention: axis `d` is 3 in `key` but 4 in `value`"):
        rpc_attention(key, points(2, 2, 6, 4), pursuit=pursuit)
    with pytest.raises(ShapeError, match=r"rpc_attention: axis `n` is 6 in `key` but 5 in `query`"):
        rpc_attention(key, value, pursuit=pursuit, query=key[:, :, :5])
    with pytest.raises(BadInput, match=r'rpc_attention: the scope "prefix" needs causal=True'):
        rpc_attention(key, value, pursuit=pursuit)
    with pytest.raises(BadInput, match=r'rpc_pattern: the scope "prefix" needs causal=True'):
        rpc_pattern(key, value, pursuit=pursuit)
    with pytest.raises(BadInput, match=r"rpc_bounds: `key` \(2, 2, 0, 3\) has no points"):
        rpc_bounds(key[:, :, :0], pursuit=pursuit)
    with pytest.raises(ShapeError, match=r"rpc_attention: `mask` has shape \(6,\), expected \(2, 6\)"):
        rpc_attention(key, value, pursuit=pursuit, causal=True, mask=keep([6], 6)[0])
    with pytest.raises(BadInput, match=r"rpc_attention: dropout is 1.0, expected a number in \[0, 1\)"):
        rpc_attention(key, value, pursuit=pursuit, causal=True, dropout=1.0)
    with pytest.raises(BadInput, match=r'rpc_start: the scope is "sequence", expected "prefix"'):
        rpc_start(2, 2, 3, pursuit=Pursuit.published())
    with pytest.raises(BadInput, match=r"rpc_start: heads is 0, expected a whole number of at least 1"):
        rpc_start(2, 0, 3, pursuit=pursuit)
    state = rpc_start(2, 2, 3, pursuit=pursuit, dtype=key.dtype)
    with pytest.raises(BadInput, match=r"`state` has keys of 2 iterations, but `pursuit` has 3"):
        rpc_step(key, value, state, pursuit=PREFIX)
    with pytest.raises(ShapeError, match=r"rpc_step: axis `h` is 2 in `state` but 1 in `key`"):
        rpc_step(key[:, :1], value[:, :1], state, pursuit=pursuit)


def test_words_of_the_switches() -> None:
    with pytest.raises(UnknownName, match=r"Pursuit: unknown sign 'jurnal', did you mean 'journal'\?"):
        Pursuit(2, 1.0, sign="jurnal")
    with pytest.raises(BadInput, match=r"Pursuit: iterations is 0, expected a whole number of at least 1"):
        Pursuit(0, 1.0)
    with pytest.raises(BadInput, match=r"Pursuit: strength is -1.0, expected a number from 0 on"):
        Pursuit(2, -1.0)
    with pytest.raises(BadInput, match=r"Pursuit: guard is nan, expected a number from 0 on"):
        Pursuit(2, 1.0, guard=float("nan"))
