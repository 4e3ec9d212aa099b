"""What every attention module promises: one suite, one line a member."""

import copy
import pickle
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from kernelhead.nn import (
    AbstractKernelAttention,
    InducingAttention,
    LinearAttention,
    NormedAttention,
    NystromAttention,
    PerformerAttention,
    PolynomialAttention,
    PooledPrimalAttention,
    PrimalAttention,
    RPCAttention,
    ScaledAttention,
    SoftmaxAttention,
    SymmetricAttention,
    TimeAwareAttention,
    TimeEncoding,
    WideAttention,
    record,
)
from kernelhead.rng import seeded
from tests.inputs import keep, points
from tests.nn.primal_forms import FORMS
from tests.tolerance import assert_exact

Build = Callable[[], AbstractKernelAttention]

MEMBERS: dict[str, Build] = {
    **{
        f"primal_{form}": lambda options=options: PrimalAttention(8, heads=2, rank=3, **options)
        for form, options in FORMS.items()
    },
    "softmax": lambda: SoftmaxAttention(8, heads=2),
    "softmax_causal": lambda: SoftmaxAttention(8, heads=2, causal=True),
    "linear": lambda: LinearAttention(8, heads=2),
    "linear_causal": lambda: LinearAttention(8, heads=2, causal=True),
    "performer": lambda: PerformerAttention(8, heads=2),
    "performer_causal": lambda: PerformerAttention(8, heads=2, causal=True),
    "nystrom": lambda: NystromAttention(8, heads=2, landmarks=3),
    "polynomial": lambda: PolynomialAttention(8, heads=2),
    "symmetric": lambda: SymmetricAttention(8, heads=2),
    "symmetric_causal": lambda: SymmetricAttention(8, heads=2, causal=True),
    "rpc": lambda: RPCAttention(8, heads=2, strength=0.5),
    "rpc_corrected": lambda: RPCAttention(8, heads=2, preset="corrected"),
    "rpc_asymmetric": lambda: RPCAttention(8, heads=2, symmetric=False, strength=0.5),
    "rpc_causal": lambda: RPCAttention(8, heads=2, causal=True, preset="corrected"),
    "scaled_exact": lambda: ScaledAttention(8, heads=2),
    "scaled_scalar": lambda: ScaledAttention(8, heads=2, mode="scalar"),
    "wide": lambda: WideAttention(8, heads=2, head_width=5),
    "normed": lambda: NormedAttention(8, heads=2, scale="input"),
    "normed_query": lambda: NormedAttention(8, heads=2, norm="query", epsilon=1e-12),
    "inducing": lambda: InducingAttention(8, heads=2, inducing=3),
    "inducing_normed": lambda: InducingAttention(8, heads=2, inducing=9, norm="all"),
    "primal_pooled": lambda: PooledPrimalAttention(8, heads=2, rank=3, landmarks=5),
    "primal_pooled_normed": lambda: PooledPrimalAttention(8, heads=2, rank=3, landmarks=5, norm="query"),
    "scaled_matrix": lambda: ScaledAttention(8, heads=2, mode="matrix", longest=7),
    "time_concatenate": lambda: TimeAwareAttention(SoftmaxAttention(12, heads=2), time=TimeEncoding(4)),
    "time_add": lambda: TimeAwareAttention(SoftmaxAttention(8, heads=2), time=TimeEncoding(4), mix="add"),
    "time_multiply": lambda: TimeAwareAttention(
        SoftmaxAttention(8, heads=2), time=TimeEncoding(6, kind="mercer", harmonics=1), mix="multiply"
    ),
    "time_causal": lambda: TimeAwareAttention(
        LinearAttention(12, heads=2, causal=True), time=TimeEncoding(4, spectrum="normal")
    ),
    "time_position": lambda: TimeAwareAttention(
        SoftmaxAttention(12, heads=2), time=TimeEncoding(4, kind="position", longest=7)
    ),
    "primal_time": lambda: TimeAwareAttention(
        PrimalAttention(12, heads=2, rank=3, landmarks=5), time=TimeEncoding(4, kind="scalar")
    ),
}
members = pytest.mark.parametrize("member", MEMBERS)


def made(member: str, *, seed: int = 0) -> AbstractKernelAttention:
    """A member in float64, the same weights for a seed."""
    with seeded(seed):
        return MEMBERS[member]().double()


@members
@pytest.mark.parametrize("n", [1, 3, 7], ids="n{}".format)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
def test_shape_and_precision_are_those_of_the_input(member: str, n: int, dtype: torch.dtype) -> None:
    module, x = made(member).to(dtype), points(2, n, 8, dtype=dtype)
    output = module(x, mask=keep([n, max(1, n - 2)], n))
    assert output.shape == x.shape
    assert output.dtype == dtype
    assert bool(output.isfinite().all())


@members
@pytest.mark.parametrize("garbage", [1e30, float("nan"), float("inf")], ids=str)
def test_padding_has_no_influence(member: str, garbage: float) -> None:
    module, mask, found = made(member), keep([7, 4, 0], 7), []
    mask[0, 2] = False
    for filling in (0.0, garbage):
        x = points(3, 7, 8).masked_fill(~mask[..., None], filling).requires_grad_()
        output = module(x, mask=mask)
        wanted = [x, *(p for p in module.parameters() if p.requires_grad)]
        gradients = torch.autograd.grad(output.square().sum(), wanted, allow_unused=True)
        found.append([output, *(g for g in gradients if g is not None)])
    for clean, dirty in zip(*found, strict=True):
        assert torch.equal(clean, dirty)
        assert bool(clean.isfinite().all())


@members
def test_a_row_of_padding_alone_gives_zeros(member: str) -> None:
    mask = keep([7, 0], 7)
    output = made(member)(points(2, 7, 8), mask=mask)
    assert bool((output[1] == 0).all())
    assert bool((output[0] != 0).any())


@members
def test_padded_points_come_out_as_zeros(member: str) -> None:
    output = made(member)(points(2, 7, 8), mask=keep([7, 4], 7))
    assert bool((output[1, 4:] == 0).all())


@members
@pytest.mark.parametrize("length", [1, 2, 4, 6])
def test_padding_at_the_end_equals_the_bare_sequence(member: str, length: int) -> None:
    module, x = made(member), points(2, 7, 8)
    padded = module(x, mask=keep([7, length], 7))
    assert_exact(padded[1:, :length], module(x[1:, :length]))
    assert_exact(padded[:1], module(x[:1]))


@members
def test_a_full_mask_is_no_mask(member: str) -> None:
    module, x = made(member), points(2, 7, 8)
    assert_exact(module(x, mask=keep([7, 7], 7)), module(x))


@members
def test_gradients_are_finite_and_reach_every_weight(member: str) -> None:
    module, x = made(member), points(2, 7, 8).requires_grad_()
    module(x, mask=keep([7, 4], 7)).square().sum().backward()
    assert bool(x.grad.isfinite().all())
    for name, weight in module.named_parameters():
        if name.split(".")[-1] == "root":  # the penalty alone reads the values
            assert weight.grad is None
            continue
        assert bool(weight.grad.isfinite().all()), name


@members
def test_gradients_at_points_of_zero_are_finite(member: str) -> None:
    module, x = made(member), torch.zeros(1, 4, 8, dtype=torch.float64, requires_grad=True)
    module(x).square().sum().backward()
    assert bool(x.grad.isfinite().all())


@members
def test_gradcheck(member: str) -> None:
    module, x, mask = made(member), points(2, 4, 8).requires_grad_(), keep([4, 3], 4)
    assert torch.autograd.gradcheck(lambda x: module(x, mask=mask), [x])


@members
def test_state_dict_round_trip(member: str) -> None:
    module, other, x = made(member), made(member, seed=1), points(2, 7, 8)
    assert not torch.equal(module(x), other(x))
    other.load_state_dict(module.state_dict())
    assert torch.equal(module(x), other(x))


@members
@pytest.mark.parametrize(
    "copied", [copy.deepcopy, lambda module: pickle.loads(pickle.dumps(module))], ids=["deepcopy", "pickle"]
)
def test_a_copy_answers_alike_and_stands_alone(
    member: str, copied: Callable[[AbstractKernelAttention], AbstractKernelAttention]
) -> None:
    module, x = made(member), points(2, 7, 8)
    before = module(x)
    twin = copied(module)
    assert torch.equal(twin(x), before)
    with torch.no_grad():
        for weight in twin.parameters():
            weight.add_(1)
    assert torch.equal(module(x), before)


@members
def test_a_used_and_recorded_module_is_still_copied(member: str) -> None:
    module, x = made(member), points(2, 7, 8)
    with record(module, patterns=True):
        before = module(x)
    twin = pickle.loads(pickle.dumps(copy.deepcopy(module)))
    assert torch.equal(twin(x), before)
    assert twin.recording == "off"


@members
def test_the_tape_keeps_moments_of_primal_layers_only(member: str) -> None:
    module, x = made(member), points(2, 7, 8)
    with record(module) as tape:
        output = module(x)
    call = tape.last("")
    assert torch.equal(call.output, output)
    assert call.pattern is None
    assert (call.moments is not None) == member.startswith("primal")
    if call.moments is not None:
        assert call.moments.left.shape == call.moments.right.shape == (2, 2, 3)
        assert call.moments.values.shape == (2, 3)


@members
def test_the_tape_keeps_patterns_without_padding(member: str) -> None:
    module, x, mask = made(member), points(2, 7, 8), keep([7, 4], 7)
    with record(module, patterns=True) as tape:
        module(x, mask=mask)
    call = tape.last("")
    for pattern in [call.pattern, call.kernel]:
        if pattern is None:
            continue
        entries: Tensor = pattern.matrix()
        assert pattern.shape == (2, 2, 7, 7)
        assert bool(entries.isfinite().all())
        assert bool((entries[1, :, 4:] == 0).all())
        assert bool((entries[1, :, :, 4:] == 0).all())
    assert call.pattern is not None


@members
def test_recording_changes_no_output_and_leaves_nothing(member: str) -> None:
    module, x = made(member), points(2, 7, 8)
    plain = module(x)
    for patterns in (False, True):
        with record(module, patterns=patterns):
            assert_exact(module(x), plain)
    assert torch.equal(module(x), plain)
    assert module.recorded is None
    assert (module.recording, module.recorded) == ("off", None)


@members
def test_training_and_evaluation_agree_without_dropout(member: str) -> None:
    module, x = made(member), points(2, 7, 8)
    assert torch.equal(module.train()(x), module.eval()(x))


@members
def test_the_global_generator_stays_where_it_is(member: str) -> None:
    module, x = made(member), points(2, 7, 8)
    before = torch.get_rng_state()
    with record(module, patterns=True):
        module(x, mask=keep([7, 4], 7)).sum().backward()
    assert torch.equal(torch.get_rng_state(), before)


@members
def test_a_batch_of_one_is_a_slice_of_a_batch(member: str) -> None:
    module, x = made(member), points(3, 7, 8)
    assert_exact(module(x[1:2]), module(x)[1:2])
