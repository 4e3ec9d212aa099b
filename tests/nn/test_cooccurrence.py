"""DistributionalAttention: the published predictions, masks, the tape; a layer that starts from a kernel."""

import copy
import pickle
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kernelhead.decomposition import factor_pairs
from kernelhead.errors import BadInput, ShapeError, UnknownName
from kernelhead.kernels import CooccurrenceKernel
from kernelhead.nn import DistributionalAttention, SoftmaxAttention, record, split_heads, start_from_kernel
from kernelhead.pattern import Dense
from kernelhead.rng import seeded
from tests.inputs import keep, points
from tests.oracles.cooccurrence import VOCABULARY, example, prediction
from tests.tolerance import assert_exact

KERNEL = Dense(torch.tensor(example(), dtype=torch.float64))
FORMS: dict[str, dict[str, Any]] = {
    "row": {},
    "softmax": {"normalise": "softmax"},
    "none": {"normalise": "none"},
    "causal": {"causal": True},
    "values": {"values": points(7, 4)},
}
forms = pytest.mark.parametrize("form", FORMS)


def made(form: str) -> DistributionalAttention:
    return DistributionalAttention(KERNEL, **FORMS[form])


def words(text: str) -> torch.Tensor:
    return torch.tensor([[VOCABULARY.index(word) for word in text.split()]])


def test_the_published_predictions() -> None:
    layer = DistributionalAttention(KERNEL, normalise="none")
    flooded, loan = layer.predict(words("river bank flooded")), layer.predict(words("bank loan"))
    assert_exact(3 * flooded[0], torch.tensor([68.0, 60, 42, 35, 66, 121, 28]).double())
    assert [round(each, 1) for each in flooded[0].tolist()] == [22.7, 20.0, 14.0, 11.7, 22.0, 40.3, 9.3]
    assert loan[0].tolist() == [12, 18, 18, 36, 9, 15, 18]
    assert VOCABULARY[int(flooded.softmax(-1).argmax())] == "shore"
    assert VOCABULARY[int(loan.softmax(-1).argmax())] == "money"


@given(st.lists(st.integers(0, 6), min_size=1, max_size=6), st.sampled_from(["row", "softmax", "none"]))
def test_predictions_are_those_of_loops(text: list[int], normalise: str) -> None:
    found = DistributionalAttention(KERNEL, normalise=normalise).predict(torch.tensor([text]))
    assert_exact(found[0], torch.tensor(prediction(example(), text, normalise), dtype=torch.float64))


def test_a_cooccurrence_kernel_and_its_factors_are_taken() -> None:
    text = words("river bank loan bank")
    sparse = DistributionalAttention(CooccurrenceKernel(np.array(example())), normalise="softmax").double()
    factors = DistributionalAttention(factor_pairs(KERNEL.entries).pattern(), normalise="softmax")
    dense = DistributionalAttention(KERNEL, normalise="softmax")
    assert_exact(sparse(text), dense(text))
    assert_exact(factors(text), dense(text))
    assert factors.scores(text).shape == (1, 4, 4)
    assert [name for name, _ in factors.named_buffers()] == ["kernel_left", "kernel_values", "kernel_right"]


@forms
def test_padding_has_no_influence(form: str) -> None:
    layer, text, mask = made(form), torch.tensor([[0, 1, 2, 5], [3, 4, 6, 6]]), keep([4, 2], 4)
    output = layer(text, mask=mask)
    assert_exact(output[1:, :2], layer(text[1:, :2]))
    assert bool((output[1, 2:] == 0).all())
    assert torch.equal(output, layer(text.masked_fill(~mask, 99), mask=mask))
    assert_exact(layer.predict(text, mask=mask)[1], layer.predict(text[1:, :2])[0])
    assert bool((layer.predict(text, mask=keep([4, 0], 4))[1] == 0).all())
    assert torch.equal(layer(text, mask=keep([4, 4], 4)), layer(text))


@forms
def test_a_tape_records_what_was_applied(form: str) -> None:
    layer, text = made(form), torch.tensor([[0, 1, 2, 5]])
    with record(layer, patterns=True) as tape:
        output = layer(text)
    attended = tape.last("")
    assert attended.pattern is not None
    assert attended.pattern.shape == (1, 1, 4, 4)
    assert torch.equal(attended.output, output)
    values = layer.values[text] if layer.values is not None else KERNEL.entries[text]
    assert_exact(attended.pattern.matrix()[:, 0] @ values, output)
    with record(layer) as tape:
        layer(text)
    assert tape.last("").pattern is None


@forms
def test_a_copy_agrees_and_nothing_is_learned(form: str) -> None:
    layer, text = made(form), torch.tensor([[0, 1, 2, 5]])
    for other in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        assert torch.equal(other(text), layer(text))
    blank = DistributionalAttention(
        Dense(torch.zeros_like(KERNEL.entries)),
        **{**FORMS[form], **({"values": torch.zeros(7, 4).double()} if form == "values" else {})},
    )
    blank.load_state_dict(layer.state_dict())
    assert torch.equal(blank(text), layer(text))
    assert [*layer.parameters()] == []
    assert layer.to(torch.float32)(text).dtype == torch.float32


@given(st.sampled_from([1, 2, 4]), st.integers(0, 50), st.sampled_from(["block", "interleave"]))
def test_scores_of_a_started_layer_sum_to_the_kernel(heads: int, seed: int, split: str) -> None:
    with seeded(seed):
        layer = SoftmaxAttention(8, heads=heads).double()
    before = {
        name: weight.clone() for name, weight in layer.named_parameters() if name.startswith(("value", "out"))
    }
    x, kernel = points(8, 8, seed=seed), points(8, 8, seed=seed + 1)
    assert start_from_kernel(layer, x, kernel, temperature=2.0, split=split) is layer
    query, key = (split_heads(side(x)[None], heads)[0] for side in (layer.query, layer.key))
    logits = query @ key.mT / (8 / heads) ** 0.5
    assert_exact(2 * logits.sum(0), kernel, bound=1e-6)
    assert all(torch.equal(weight, dict(layer.named_parameters())[name]) for name, weight in before.items())


def test_a_started_layer_takes_sparse_kernels_and_learns() -> None:
    with seeded(0):
        layer = SoftmaxAttention(4, heads=2)
    x = points(9, 4, dtype=torch.float32)
    start_from_kernel(layer, x, CooccurrenceKernel(points(9, 9).numpy()))
    layer(x[None]).square().sum().backward()
    assert all(bool(weight.grad.isfinite().all()) for weight in layer.parameters())
    assert bool((layer.query.weight.grad != 0).any())


LAYER = DistributionalAttention(KERNEL)
SOFTMAX = SoftmaxAttention(4, heads=2)


@pytest.mark.parametrize(
    ("call", "error", "said"),
    [
        (lambda: DistributionalAttention(KERNEL, normalise="sum"), UnknownName, "unknown normalisation"),
        (lambda: DistributionalAttention(Dense(points(2, 3))), ShapeError, r"the kernel has shape \(2, 3\)"),
        (lambda: DistributionalAttention(Dense(points(2, 2) / 0)), BadInput, "holds NaN or infinity"),
        (lambda: DistributionalAttention(Dense(-torch.ones(2, 2))), BadInput, "negative entries down to -1"),
        (lambda: DistributionalAttention(factor_pairs(points(3, 3)).pattern()), BadInput, "do not allow"),
        (lambda: DistributionalAttention(KERNEL, values=points(3, 2)), ShapeError, r"expected \(7, c\)"),
        (lambda: LAYER(torch.zeros(1, 2)), BadInput, "`words` is torch.float32 of shape"),
        (lambda: LAYER(torch.zeros(2, dtype=torch.long)), BadInput, "expected whole numbers"),
        (lambda: LAYER.scores(torch.zeros(2, 0, dtype=torch.long)), BadInput, "n of 1 or more"),
        (lambda: LAYER(torch.tensor([[0, 7]])), BadInput, "words run from 0 to 7, expected 0 to 6"),
        (lambda: LAYER.scores(torch.tensor([[0, -1]])), BadInput, "words run from -1 to 0"),
        (lambda: LAYER(torch.zeros(1, 2).long(), mask=keep([1], 3)), ShapeError, "one entry for each point"),
        (lambda: start_from_kernel(SOFTMAX, points(5, 3), points(5, 5)), ShapeError, r"expected \(v, 4\)"),
        (lambda: start_from_kernel(SOFTMAX, points(5, 4), points(5, 5), temperature=0.0), BadInput, "is 0.0"),
    ],
)  # fmt: skip
def test_what_is_refused(call: Any, error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        call()
