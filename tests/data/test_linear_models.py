"""Known causes: linear models and cascades, their graphs, their draws, their words."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernelhead.data import LinearModel, draw_cascades, linear_model
from kernelhead.errors import BadInput


@given(nodes=st.integers(2, 9), seed=st.integers(0, 999))
def test_effects_undo_the_model(nodes: int, seed: int) -> None:
    model = linear_model(nodes, neighbours=1.0, seed=seed)
    assert np.allclose(model.effects @ (np.eye(nodes) - model.weights), np.eye(nodes), atol=1e-12)
    assert np.allclose(model.attention.sum(1), 1)
    assert (model.skeleton == model.skeleton.T).all()
    assert np.array_equal(model.weights, linear_model(nodes, neighbours=1.0, seed=seed).weights)


def test_neighbours_are_as_many_as_asked() -> None:
    edges = [linear_model(8, seed=seed).skeleton.sum() / 8 for seed in range(200)]
    assert abs(np.mean(edges) - 2) < 0.15


def test_samples_covary_as_the_model_says() -> None:
    model = LinearModel.of([(0, 1, 0.8), (1, 2, -0.5)], nodes=4)
    drawn = model.samples(20000, seed=0)
    assert drawn.shape == (20000, 4)
    assert np.allclose(np.cov(drawn.T), model.effects @ model.effects.T, atol=0.06)
    with pytest.raises(BadInput, match=r"the least effect is -0\.5, and attention is not negative"):
        _ = model.attention


def test_a_model_has_no_circle() -> None:
    with pytest.raises(BadInput, match=r"effects go in a circle over \[0, 1\]"):
        LinearModel.of([(0, 1, 1.0), (1, 0, 1.0)], nodes=3)
    with pytest.raises(BadInput, match=r"weights have shape \(2, 3\), expected finite ones \(p, p\)"):
        LinearModel(np.zeros((2, 3)))
    with pytest.raises(BadInput, match="9 neighbours, expected from 0 to 3 of 4 nodes"):
        linear_model(4, neighbours=9, seed=0)


@given(seed=st.integers(0, 99), length=st.integers(1, 8))
def test_cascades_follow_their_graph(seed: int, length: int) -> None:
    drawn = draw_cascades(5, items=12, length=length, strength=1.0, graph=3, seed=seed)
    assert drawn.items == 12
    assert np.array_equal(drawn.causes, draw_cascades(1, items=12, length=1, graph=3, seed=0).causes)
    for case, row in enumerate(drawn.sequences):
        assert len({*row.tolist()}) == length
        skeleton = drawn.skeleton(case)
        for place in range(1, length):  # an item is caused by one before it, unless nothing was left to come
            if not any(drawn.causes[row[place], row[before]] for before in range(place)):
                seen = {*row[:place].tolist()}
                assert {*np.flatnonzero(drawn.causes[:, row[:place]].any(1)).tolist()} <= seen
        assert (skeleton == skeleton.T).all()


def test_wrong_cascades_are_named() -> None:
    with pytest.raises(BadInput, match=r"length is 9 of 5 items, strength 0\.7; expected at most as many"):
        draw_cascades(1, items=5, length=9, seed=0)
    with pytest.raises(BadInput, match="sequences is 0"):
        draw_cascades(0, seed=0)
