"""The loops of transport, on what is known in closed form."""

import pytest
import torch

from tests.inputs import points
from tests.oracles import transport as oracle


def test_the_best_pairing_on_a_line_keeps_the_order() -> None:
    x, y = points(5, 1), points(5, 1, seed=1)
    order, _ = oracle.best_pairing(x, y)
    assert torch.equal(x[:, 0].argsort(), torch.tensor(order)[:].argsort()[y[:, 0].argsort()])


def test_scaled_scores_of_no_preference_are_uniform() -> None:
    assert torch.allclose(oracle.sinkhorn_scores(torch.zeros(2, 4), 3), torch.full((2, 4), 0.25).double())


def test_a_straight_way_is_efficient() -> None:
    start = points(4, 2)
    made = oracle.figures([[start, start + 1, start + 3]])
    assert made["efficiency"] == pytest.approx(1)
    assert made["thesis_efficiency"] == pytest.approx(0.5)  # one over the root of four points
    assert made["monge_gap"] == pytest.approx(0)
