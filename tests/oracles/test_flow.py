"""The loops of flow, against products of matrices and against each other's closed forms."""

import pytest
import torch

from tests.inputs import points
from tests.oracles import flow as oracle
from tests.tolerance import assert_exact


def test_rollout_is_a_product_of_matrices() -> None:
    layers = [points(2, 4, 4, seed=seed).softmax(-1) for seed in range(3)]
    product = torch.eye(4, dtype=torch.float64)
    for layer in layers:
        product = (0.7 * layer.mean(0) + 0.3 * torch.eye(4, dtype=torch.float64)) @ product
    assert_exact(oracle.rollout(layers, 0.3), product)


def test_flow_is_a_mean_of_sums() -> None:
    rolled = points(4, 4).softmax(-1)
    whole = oracle.flow(rolled, [[0], [1, 2, 3]])
    assert_exact(whole[1, 0], rolled[1:, 0].mean())
    assert_exact(whole.sum(-1), torch.ones(2).double())
    part = oracle.flow(rolled, [[0], [1, 2]])
    kept = rolled[:3, :3] / rolled[:3, :3].sum(-1, keepdim=True)
    assert_exact(part[1, 0], kept[1:, 0].mean())
    assert_exact(oracle.outside(rolled, [[0], [1, 2]])[0], rolled[0, 3])


@pytest.mark.parametrize("alpha", [0.25, 0.5, 1.0])
@pytest.mark.parametrize("depth", [1, 3])
def test_uniform_attention_is_a_chain_of_two_masses(depth: int, alpha: float) -> None:
    words, image = 3, 5
    visual, worded = oracle.two_mass_flow(words / 8, image / 8, depth, alpha)
    found = oracle.uniform_flow([words, image], depth, alpha)
    assert float(found[1, 0]) == pytest.approx(visual, abs=1e-15)
    assert float(found[0, 1]) == pytest.approx(worded, abs=1e-15)
    assert (visual + worded) / 2 == pytest.approx((1 - (1 - alpha) ** depth) / 2, abs=1e-15)
    assert oracle.two_mass_flow(0, 0, depth, alpha) == (0.0, 0.0)
