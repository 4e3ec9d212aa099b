"""layer_names and build_attention: plans for every layer, members by name, and their words."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kernelhead.errors import BadInput, UnknownName
from kernelhead.models import ATTENTIONS, Sizes, build_attention, layer_names

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
    assert type(made).__name__.lower() == f"{name}attention"
    assert made(torch.zeros(2, 5, 8)).shape == (2, 5, 8)


def test_the_primal_builder_uses_all_its_sizes() -> None:
    made = build_attention("primal", Sizes(8, 2, rank=3, landmarks=4, causal=True, init="published"))
    assert (made.rank, made.landmarks, made.causal) == (3, 4, True)
    assert made.left.shape == (2, 4, 3)
    assert torch.linalg.matrix_norm(made.left).allclose(torch.ones(2))


@pytest.mark.parametrize("name", ["primal", "softmax", "linear", "performer"])
def test_causal_reaches_the_layer(name: str) -> None:
    assert build_attention(name, Sizes(8, 2, rank=3, landmarks=4, causal=True)).causal


def test_an_unknown_builder_suggests_the_nearest() -> None:
    with pytest.raises(
        UnknownName, match="build_attention: unknown attention 'lineal', did you mean 'linear'"
    ):
        build_attention("lineal", Sizes(8, 2, 3, 4))
