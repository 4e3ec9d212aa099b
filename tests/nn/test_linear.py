"""The linear rivals as modules: their core, their laws, their patterns, their words."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from kernelhead.errors import BadInput
from kernelhead.nn.base import AbstractKernelAttention
from kernelhead.nn.heads import merge_heads, split_heads
from kernelhead.nn.linear import LinearAttention, NystromAttention, PerformerAttention
from kernelhead.nn.softmax import SoftmaxAttention
from kernelhead.nn.tape import record
from kernelhead.pattern import Dense, Factored
from kernelhead.rng import seeded
from tests.inputs import keep, points
from tests.oracles import rivals
from tests.tolerance import assert_exact

LAYERS: dict[str, Callable[[], AbstractKernelAttention]] = {
    "linear": lambda: LinearAttention(12, heads=3),
    "linear causal": lambda: LinearAttention(12, heads=3, causal=True),
    "performer": lambda: PerformerAttention(12, heads=3),
    "performer causal": lambda: PerformerAttention(12, heads=3, causal=True),
    "nystrom": lambda: NystromAttention(12, heads=3, landmarks=3),
}
MASK = keep([7, 5], 7)
every_layer = pytest.mark.parametrize("name", LAYERS)


def layer(name: str) -> AbstractKernelAttention:
    with seeded(0):
        return LAYERS[name]().double()


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("name", ["linear", "performer"])
def test_the_core_is_the_definition(name: str, causal: bool) -> None:
    ours, x = layer(name + " causal" * causal), points(2, 7, 12)
    q, k, v = (split_heads(part(x), 3) for part in (ours.query, ours.key, ours.value))
    if name == "linear":
        core = rivals.linear_attention(q, k, v, mask=MASK, causal=causal)
    else:
        core = rivals.performer_attention(q, k, v, ours.frequencies, mask=MASK, causal=causal)
    assert_exact(ours(x, mask=MASK), ours.out(merge_heads(core)) * MASK.unsqueeze(-1))


@pytest.mark.parametrize("name", ["linear", "performer"])
def test_a_context_is_attended(name: str) -> None:
    ours, x, context, mask = layer(name), points(2, 7, 12), points(2, 5, 12, seed=1), keep([2, 5], 5)
    q, k, v = (
        split_heads(part(s), 3) for part, s in [(ours.query, x), (ours.key, context), (ours.value, context)]
    )
    if name == "linear":
        core = rivals.linear_attention(q, k, v, mask=mask)
    else:
        core = rivals.performer_attention(q, k, v, ours.frequencies, mask=mask)
    assert_exact(ours(x, context=context, context_mask=mask), ours.out(merge_heads(core)))


def test_nystrom_with_enough_landmarks_is_softmax() -> None:
    ours, softmax, x = (
        NystromAttention(12, heads=3).double(),
        SoftmaxAttention(12, heads=3).double(),
        points(2, 7, 12),
    )
    softmax.load_state_dict(ours.state_dict())
    assert_exact(ours(x, mask=MASK), softmax(x, mask=MASK))


@every_layer
def test_the_pattern_is_what_was_applied(name: str) -> None:
    ours, x = layer(name), points(2, 7, 12)
    with record(ours, patterns=True) as tape:
        output = ours(x, mask=MASK)
    pattern = tape.last("").pattern
    assert isinstance(pattern, Factored if name in ("linear", "performer") else Dense)
    applied = pattern.apply(split_heads(ours.value(x), 3))
    assert_exact(ours.out(merge_heads(applied)) * MASK.unsqueeze(-1), output)
    entries = pattern.matrix()
    assert (entries[1, :, 5:] == 0).all()
    assert (entries[1, :, :, 5:] == 0).all()
    if name != "nystrom":
        assert_exact(pattern.marginals()[0], MASK[:, None].expand(2, 3, 7).double())
    with record(ours) as tape:
        ours(x)
    assert tape.last("").pattern is None


@every_layer
def test_what_stands_at_padding_has_no_influence(name: str) -> None:
    ours = layer(name)
    results = []
    for garbage in (torch.nan, 3.0):
        x = points(2, 7, 12).where(MASK.unsqueeze(-1), garbage).requires_grad_()
        output = ours(x, mask=MASK)
        results.append((output, *torch.autograd.grad(output.square().sum(), [x, *ours.parameters()])))
    assert all(map(torch.equal, *results))
    assert all(result.isfinite().all() for result in results[0])
    assert_exact(results[0][0][1:, :5], ours(points(2, 7, 12)[1:, :5]))


@pytest.mark.parametrize("name", ["linear", "performer"])
def test_moving_points_moves_outputs(name: str) -> None:
    ours, x, order = layer(name), points(2, 7, 12), torch.tensor([3, 1, 6, 0, 2, 5, 4])
    assert_exact(ours(x[:, order]), ours(x)[:, order])


@pytest.mark.parametrize("name", ["linear causal", "performer causal"])
def test_causal_outputs_do_not_see_what_follows(name: str) -> None:
    ours, x = layer(name), points(2, 7, 12)
    assert_exact(ours(x)[:, :4], ours(x[:, :4]))


@every_layer
def test_gradients(name: str) -> None:
    ours = layer(name)

    def call(x: Tensor) -> Tensor:
        return ours(x, mask=keep([5, 4], 5))

    assert torch.autograd.gradcheck(call, points(2, 5, 12).requires_grad_())


@every_layer
def test_names_of_the_state(name: str) -> None:
    names = {f"{part}.{kind}" for part in ("query", "key", "value", "out") for kind in ("weight", "bias")}
    extra = {"frequencies"} if name.startswith("performer") else set()
    assert set(layer(name).state_dict()) == names | extra


def test_frequencies_come_from_the_seed_alone() -> None:
    before = torch.random.get_rng_state()
    one, same, other = (PerformerAttention(32, heads=2, seed=seed).frequencies for seed in (3, 3, 4))
    assert torch.equal(one, same)
    assert not torch.equal(one, other)
    with torch.random.fork_rng():
        torch.random.set_rng_state(before)
        for _ in range(3):
            SoftmaxAttention(32, heads=2)
        plain = torch.random.get_rng_state()
    assert torch.equal(plain, torch.random.get_rng_state())


@pytest.mark.parametrize(
    ("width", "features", "count"), [(2, None, 1), (8, None, 6), (64, None, 111), (64, 5, 5)]
)
def test_how_many_features(width: int, features: int | None, count: int) -> None:
    head = width // 2
    drawn = PerformerAttention(width, heads=2, features=features).frequencies
    assert drawn.shape == (count, head)
    block = torch.nn.functional.normalize(drawn[:head].double(), dim=-1)
    assert float((block @ block.mT - torch.eye(len(block))).abs().max()) < 1e-6


def test_words() -> None:
    for build in (LinearAttention, PerformerAttention, NystromAttention):
        with pytest.raises(BadInput, match=rf"{build.__name__}: width 12 does not split into 5 heads"):
            build(12, heads=5)
    with pytest.raises(
        BadInput, match=r"PerformerAttention: features is 0, expected a whole number of at least 1"
    ):
        PerformerAttention(12, heads=3, features=0)
    with pytest.raises(
        BadInput, match=r"NystromAttention: landmarks is 0, expected a whole number of at least 1"
    ):
        NystromAttention(12, heads=3, landmarks=0)
    for name in ("linear causal", "performer causal"):
        with pytest.raises(
            BadInput, match=r"Attention: is causal, and so takes no `context`, got \(2, 5, 12\)"
        ):
            layer(name)(points(2, 7, 12), context=points(2, 5, 12))
    with pytest.raises(
        BadInput, match=r"NystromAttention: pairs the landmarks of one sequence, and so takes no"
    ):
        layer("nystrom")(points(2, 7, 12), context=points(2, 5, 12))


def test_steps_of_linear_attention_are_its_rows() -> None:
    layer, x = LinearAttention(8, heads=2, causal=True).double(), points(3, 6, 8)
    state, rows = layer.start(3), []
    for point in x.unbind(1):
        row, state = layer.step(point, state)
        rows.append(row)
    assert_exact(torch.stack(rows, 1), layer(x))


def test_steps_that_cannot_be() -> None:
    with pytest.raises(BadInput, match=r"LinearAttention: start and step need causal=True"):
        LinearAttention(8, heads=2).start(1)
    layer = LinearAttention(8, heads=2, causal=True)
    with pytest.raises(BadInput, match=r"LinearAttention.step: `x` has shape \(2, 8\), expected \(3, 8\)"):
        layer.step(points(2, 8), layer.start(3))
