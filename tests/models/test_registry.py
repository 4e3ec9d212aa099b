"""layer_names and build_attention: plans for every layer, members by name, and their words."""

from dataclasses import replace
from functools import partial

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from kernelhead.errors import BadInput, UnknownName
from kernelhead.models import (
    ATTENTIONS,
    DecisionTransformer,
    ImageClassifier,
    LanguageModel,
    PairClassifier,
    SequenceClassifier,
    Sizes,
    build_attention,
    layer_names,
)
from kernelhead.nn import RPCAttention
from kernelhead.ops import Pursuit

names = st.sampled_from(sorted(ATTENTIONS))


@given(name=names, depth=st.integers(1, 6))
def test_one_name_is_for_all_layers(name: str, depth: int) -> None:
    assert layer_names(name, depth) == [name] * depth
    assert layer_names([name], depth) == [name] * depth


@given(name=names, depth=st.integers(1, 6))
def test_a_plus_is_for_the_last_layer(name: str, depth: int) -> None:
    assert layer_names(f"{name}+", depth) == ["softmax"] * (depth - 1) + [name]


@given(plan=st.lists(names, min_size=2, max_size=5))
def test_a_list_is_one_a_layer(plan: list[str]) -> None:
    assert layer_names(plan, len(plan)) == plan
    assert layer_names(tuple(plan), len(plan)) == plan
    assert layer_names(" , ".join(plan), len(plan)) == plan


@given(first=names, second=names, third=names, depth=st.integers(1, 6))
def test_dots_repeat_the_name_before_them(first: str, second: str, third: str, depth: int) -> None:
    assert layer_names(f"{first}, ...", depth) == layer_names(first, depth)
    assert layer_names(f"{first},{second},...", depth) == [first] + [second] * (depth - 1)
    assert layer_names([first, "...", second], depth) == [first] * (depth - 1) + [second]
    assert layer_names(f"softmax,...,{first}", depth) == layer_names(f"{first}+", depth)
    if depth >= 2:
        made = [first, *[second] * (depth - 2), third]
        assert layer_names(f"{first},{second},...,{third}", depth) == made


def test_misplaced_dots_are_refused() -> None:
    for names in ("...", "...,rpc", "rpc,...,softmax,..."):
        with pytest.raises(BadInput, match=r'"\.\.\." stands once and after the name to repeat, got'):
            layer_names(names, 4)
    with pytest.raises(UnknownName, match="unknown attention 'rcp', did you mean 'rpc'"):
        layer_names("rcp,symmetric,...", 3)
    with pytest.raises(BadInput, match=r"names 2 layers, but the depth is 1"):
        layer_names("rpc,softmax,...,primal", 1)


def test_an_unknown_name_suggests_the_nearest() -> None:
    with pytest.raises(
        UnknownName, match=r"unknown attention 'prmal', did you mean 'primal'\? Known: linear"
    ):
        layer_names("prmal", 2)
    with pytest.raises(UnknownName, match="unknown attention 'sotfmax', did you mean 'softmax'"):
        layer_names("primal,sotfmax", 2)


def test_an_empty_name_is_named() -> None:
    with pytest.raises(UnknownName, match="unknown attention ''"):
        layer_names("", 2)


def test_a_plus_inside_a_list_is_refused() -> None:
    with pytest.raises(BadInput, match=r"'primal\+' stands for a whole model and cannot be one of 2 names"):
        layer_names("primal+,softmax", 2)


def test_a_wrong_number_of_names_has_both_numbers() -> None:
    with pytest.raises(BadInput, match="'primal,softmax' names 2 layers, but the depth is 3"):
        layer_names("primal,softmax", 3)


@pytest.mark.parametrize("name", ATTENTIONS)
def test_every_name_builds_an_attention_of_its_sizes(name: str) -> None:
    made = build_attention(name, Sizes(width=8, heads=2, rank=3, landmarks=4))
    assert (made.width, made.heads) == (8, 2)
    assert type(made).__name__.lower() == f"{name.removesuffix('_corrected')}attention"
    assert made(torch.zeros(2, 5, 8)).shape == (2, 5, 8)


def test_the_primal_builder_uses_all_its_sizes() -> None:
    made = build_attention("primal", Sizes(8, 2, rank=3, landmarks=4, causal=True, init="published"))
    assert (made.rank, made.landmarks, made.causal) == (3, 4, True)
    assert made.left.shape == (2, 4, 3)
    assert torch.linalg.matrix_norm(made.left).allclose(torch.ones(2))


def test_the_pursuit_builders_use_all_their_sizes() -> None:
    sizes = Sizes(8, 2, rank=3, landmarks=4, causal=True, iterations=2, strength=1.5)
    made = build_attention("rpc", sizes)
    assert made.pursuit == Pursuit.published(2, 1.5, scope="prefix")
    assert build_attention("rpc_corrected", replace(sizes, strength=None)).pursuit == Pursuit.corrected(
        2, scope="prefix"
    )


MODELS = {
    "sequence": partial(SequenceClassifier, 3, channels=2),
    "image": partial(ImageClassifier, 3, channels=1, size=4, patch=2),
    "language": partial(LanguageModel, 9),
    "pair": partial(PairClassifier, 9),
    "decision": partial(DecisionTransformer, 4, 2),
}


@pytest.mark.parametrize("model", MODELS)
def test_every_model_hands_its_pursuits_their_sizes(model: str) -> None:
    build = partial(MODELS[model], width=8, depth=2, heads=2)
    scope = "prefix" if model in ("language", "decision") else "sequence"

    def pursuits(made: nn.Module) -> list[Pursuit]:
        return [layer.pursuit for layer in made.modules() if isinstance(layer, RPCAttention)]

    mixed = build(attention="rpc,rpc_corrected")
    assert pursuits(mixed) == [Pursuit.published(4, scope=scope), Pursuit.corrected(4, scope=scope)]
    mixed = build(attention="rpc,rpc_corrected", iterations=2)
    assert pursuits(mixed) == [Pursuit.published(2, scope=scope), Pursuit.corrected(2, scope=scope)]
    assert pursuits(build(attention="rpc+", strength=1.5)) == [Pursuit.published(4, 1.5, scope=scope)]
    with pytest.raises(BadInput, match="iterations is 0, expected"):
        build(attention="rpc", iterations=0)


def test_what_cannot_be_causal_says_so() -> None:
    with pytest.raises(BadInput, match="ScaledAttention: cannot be causal"):
        build_attention("scaled", Sizes(8, 2, rank=3, landmarks=4, causal=True))


@pytest.mark.parametrize("name", ["primal", "softmax", "linear", "performer", "symmetric", "rpc"])
def test_causal_reaches_the_layer(name: str) -> None:
    assert build_attention(name, Sizes(8, 2, rank=3, landmarks=4, causal=True)).causal


def test_an_unknown_builder_suggests_the_nearest() -> None:
    with pytest.raises(
        UnknownName, match="build_attention: unknown attention 'lineal', did you mean 'linear'"
    ):
        build_attention("lineal", Sizes(8, 2, 3, 4))
