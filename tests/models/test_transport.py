"""Dummy means, the map to them and the transformer of clouds: their places, shapes, laws and words."""

from itertools import combinations
from math import pi, sin

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kernelhead.errors import BadInput
from kernelhead.models import CloudClassifier, TransportMap, mean_anchors, ring_anchors
from kernelhead.rng import seeded
from tests.inputs import points
from tests.tolerance import assert_exact


@given(classes=st.integers(2, 9), width=st.integers(2, 5), radius=st.floats(0.5, 30))
def test_a_ring_has_its_radius_and_its_neighbours(classes: int, width: int, radius: float) -> None:
    made = ring_anchors(classes, width, radius=radius).double()
    assert made.norm(dim=1).tolist() == pytest.approx([radius] * classes, rel=1e-5)
    nearest = min(float((a - b).norm()) for a, b in combinations(made, 2))
    assert nearest == pytest.approx(2 * radius * sin(pi / classes), rel=1e-4)
    assert float(made[:, 2:].abs().sum()) == 0


@given(classes=st.integers(2, 6), seed=st.integers(0, 99))
def test_means_lie_as_those_of_the_classes(classes: int, seed: int) -> None:
    x, y = points(6 * classes, 3, seed=seed), torch.arange(6 * classes) % classes
    made = mean_anchors(x, y, radius=5.0)
    means = torch.stack([x[y == place].mean(0) for place in range(classes)])
    ratio = torch.pdist(made) / torch.pdist(means)
    assert torch.allclose(ratio, ratio[0].expand_as(ratio))
    assert float(torch.pdist(made).min()) == pytest.approx(10 * sin(pi / classes))
    assert float(made.mean(0).abs().max()) < 1e-9


def test_scores_are_minus_distances() -> None:
    anchors = ring_anchors(3, 2, radius=9.0)
    with seeded(0):
        model = TransportMap(2, anchors, hidden=(4,)).double()
    x = points(5, 2)
    wanted = torch.stack([torch.stack([-(y - a).norm() for a in anchors]) for y in model(x)])
    assert_exact(model.scores(x), wanted)
    assert sum(each.numel() for each in model.parameters()) == 2 * 4 + 4 + 4 * 2 + 2
    assert "anchors" in model.state_dict()


def test_without_layers_between_it_is_linear() -> None:
    model = TransportMap(2, ring_anchors(2, 2, radius=1.0), hidden=()).double()
    x, y = points(3, 2), points(3, 2, seed=1)
    assert_exact(model(x) + model(y) - model(torch.zeros(3, 2).double()), model(x + y))


def test_a_transformer_of_clouds_keeps_the_space_of_its_input() -> None:
    with seeded(0):
        model = CloudClassifier(2, 3, blocks=2).double().eval()
    x = points(4, 7, 2)
    assert model.blocks(x).shape == x.shape
    order = torch.randperm(7, generator=torch.Generator().manual_seed(0))
    assert_exact(model(x[:, order]), model(x)[:, order])
    assert_exact(model(x[1:2]), model(x)[1:2])


def test_one_point_is_moved_by_itself_alone() -> None:
    with seeded(0):
        model = CloudClassifier(3, 2).double().eval()
    x = points(5, 1, 3)
    apart = torch.cat([model(each[None]) for each in x])
    assert_exact(model(x), apart)


def test_words() -> None:
    with pytest.raises(BadInput, match="ring_anchors: width is 1"):
        ring_anchors(3, 1, radius=1.0)
    with pytest.raises(BadInput, match=r"ring_anchors: radius is 0\.0, expected a number above 0"):
        ring_anchors(3, 2, radius=0.0)
    with pytest.raises(BadInput, match="mean_anchors: 1 class"):
        mean_anchors(torch.zeros(3, 2), torch.zeros(3, dtype=torch.int64), radius=1.0)
    with pytest.raises(BadInput, match="the means of two classes coincide"):
        mean_anchors(torch.zeros(4, 2), torch.tensor([0, 0, 1, 1]), radius=1.0)
    with pytest.raises(BadInput, match="TransportMap: width is 0"):
        TransportMap(2, ring_anchors(2, 2, radius=1.0), hidden=(0,))
    with pytest.raises(BadInput, match="CloudClassifier: blocks is 0"):
        CloudClassifier(2, 2, blocks=0)
