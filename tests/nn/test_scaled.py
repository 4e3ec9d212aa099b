"""ScaledAttention: its answer, its laws, its pattern, its words."""

import pytest
import torch
from torch import Tensor

from kernelhead.errors import BadInput, UnknownName
from kernelhead.nn import ScaledAttention, SoftmaxAttention, merge_heads, record, split_heads
from kernelhead.ops import softmax_pattern
from kernelhead.rng import seeded
from tests.inputs import keep, points
from tests.oracles import rpc as oracles
from tests.tolerance import assert_exact

MODES = {"exact": None, "scalar": None, "matrix": 7}
modes = pytest.mark.parametrize("mode", MODES)
masks = pytest.mark.parametrize("mask", [None, keep([7, 4], 7)], ids=["plain", "masked"])


def layer(mode: str, *, learned: bool = True, dropout: float = 0.0) -> ScaledAttention:
    with seeded(0):
        made = ScaledAttention(12, heads=3, mode=mode, longest=MODES[mode], dropout=dropout).double()
    for name, weight in made.named_parameters():
        if learned and name in ("matrix", "weight"):
            weight.data = points(*weight.shape, seed=3)
    return made


def sides(made: ScaledAttention, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    query, key, value = (split_heads(part(x), 3) for part in (made.query, made.key, made.value))
    return query, key, value


def corrected(made: ScaledAttention, key: Tensor, value: Tensor, mask: Tensor | None) -> Tensor:
    """Values less S times values, with S written out; zero at padded points."""
    real = torch.ones(2, 7).bool() if mask is None else mask
    value = value * real[:, None, :, None]
    if made.mode == "exact":
        return oracles.scaled_values(key, value, mask=mask)
    pattern = made.weight * softmax_pattern(key, key, mask=real[:, None]) if made.mode == "scalar" else None
    matrix = made.matrix if pattern is None else pattern
    return (value - matrix @ value) * real[:, None, :, None]


@modes
@masks
def test_output_is_softmax_attention_of_corrected_values(mode: str, mask: Tensor | None) -> None:
    made, x = layer(mode), points(2, 7, 12)
    query, key, value = sides(made, x)
    real = None if mask is None else mask[:, None]
    expected = softmax_pattern(query, key, mask=real) @ corrected(made, key, value, mask)
    expected = made.out(merge_heads(expected))
    assert_exact(made(x, mask=mask), expected if mask is None else expected * mask.unsqueeze(-1))


@pytest.mark.parametrize("mode", ["scalar", "matrix"])
@masks
def test_untrained_it_is_softmax_attention(mode: str, mask: Tensor | None) -> None:
    made, plain, x = layer(mode, learned=False), SoftmaxAttention(12, heads=3).double(), points(2, 7, 12)
    shared = {name: each for name, each in made.state_dict().items() if name not in ("matrix", "weight")}
    plain.load_state_dict(shared)
    assert_exact(made(x, mask=mask), plain(x, mask=mask))


@modes
@masks
def test_the_pattern_is_what_is_applied_to_the_values(mode: str, mask: Tensor | None) -> None:
    made, x = layer(mode), points(2, 7, 12)
    with record(made, patterns=True) as tape:
        output = made(x, mask=mask)
    pattern = tape.last("").pattern
    assert pattern is not None
    applied = made.out(merge_heads(pattern.apply(sides(made, x)[2])))
    assert_exact(applied if mask is None else applied * mask.unsqueeze(-1), output)


@modes
def test_a_context_is_corrected_alone(mode: str) -> None:
    made, x, context = layer(mode), points(2, 5, 12, seed=1), points(2, 7, 12)
    mask, context_mask = keep([5, 2], 5), keep([7, 4], 7)
    with record(made, patterns=True) as tape:
        output = made(x, mask=mask, context=context, context_mask=context_mask)
    query = split_heads(made.query(x), 3)
    _, key, value = sides(made, context)
    mixed = softmax_pattern(query, key, mask=context_mask[:, None]) @ corrected(
        made, key, value, context_mask
    )
    assert_exact(output, made.out(merge_heads(mixed)) * mask.unsqueeze(-1))
    pattern = tape.last("").pattern
    assert pattern is not None
    assert pattern.shape == (2, 3, 5, 7)


def test_the_exact_correction_leaves_nothing_along_g() -> None:
    made, x = layer("exact"), points(2, 7, 12)
    _, key, value = sides(made, x)
    sums = (key @ key.mT / 2).exp().sum(-1, keepdim=True)
    weighted = (sums * corrected(made, key, value, None)).sum(-2)
    assert_exact(weighted + 1, torch.ones_like(weighted))


@modes
def test_gradcheck_with_learned_corrections(mode: str) -> None:
    made, x = layer(mode), points(2, 4, 12).requires_grad_()
    mask = keep([4, 3], 4)
    assert torch.autograd.gradcheck(lambda x: made(x, mask=mask), [x])


@modes
def test_dropout_acts_in_training_only(mode: str) -> None:
    made, x = layer(mode, dropout=0.5), points(2, 7, 12)
    with seeded(0):
        first, second = made(x), made(x)
    assert not torch.equal(first, second)
    assert_exact(made.eval()(x), layer(mode)(x))


def test_names_of_the_state() -> None:
    names = {f"{part}.{kind}" for part in ("query", "key", "value", "out") for kind in ("weight", "bias")}
    assert set(layer("exact").state_dict()) == names
    assert set(layer("scalar").state_dict()) == names | {"weight"}
    assert set(layer("matrix").state_dict()) == names | {"matrix"}
    assert layer("matrix").matrix.shape == (3, 7, 7)
    assert "mode=matrix" in repr(layer("matrix"))


def test_words() -> None:
    with pytest.raises(BadInput, match=r"ScaledAttention: width 12 does not split into 5 heads"):
        ScaledAttention(12, heads=5)
    with pytest.raises(BadInput, match=r"ScaledAttention: dropout is 2, expected a number in \[0, 1\)"):
        ScaledAttention(12, heads=3, dropout=2)
    with pytest.raises(UnknownName, match=r"ScaledAttention: unknown mode 'metrix', did you mean 'matrix'"):
        ScaledAttention(12, heads=3, mode="metrix")
    with pytest.raises(BadInput, match=r"ScaledAttention: cannot be causal, for it mixes the values of all"):
        ScaledAttention(12, heads=3, causal=True)
    for mode, longest in (("matrix", None), ("exact", 7)):
        match = rf'longest is {longest} in mode "{mode}"; only "matrix" needs and takes one'
        with pytest.raises(BadInput, match=match):
            ScaledAttention(12, heads=3, mode=mode, longest=longest)
    with pytest.raises(BadInput, match=r"longest is 0, expected a whole number of at least 1"):
        ScaledAttention(12, heads=3, mode="matrix", longest=0)
    with pytest.raises(BadInput, match=r"ScaledAttention: 8 points, but its matrix was made for 7 at most"):
        layer("matrix")(points(2, 8, 12))
