"""Maps to dummies: how points are paired, what is held out, heads that know dummies alone, and the words."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from kernelhead.data import TableEncoder
from kernelhead.errors import BadInput, UnknownName
from kernelhead.models import ring_anchors
from kernelhead.training import (
    MapSettings,
    TableSettings,
    fit_map,
    fit_table,
    matched_dummies,
    pretrain_head,
)
from tests.inputs import points

ANCHORS = ring_anchors(2, 2, radius=6.0)


def test_pairs_stay_inside_classes_and_cost_least_when_optimal() -> None:
    x, y = points(40, 2, dtype=torch.float32), torch.arange(40) % 2
    made = {
        match: matched_dummies(x, y, ANCHORS, MapSettings(match=match)) for match in ("ot", "random", "mean")
    }
    for goals in made.values():
        assert bool(((goals[:, 0] > 0) == (y == 0)).all())
    assert torch.equal(made["ot"].sort(0).values, made["random"].sort(0).values)  # the same dummies
    cost = {match: float((goals - x).square().sum()) for match, goals in made.items()}
    assert cost["ot"] < cost["random"]


def test_a_map_is_nearer_to_optimal_when_pairs_are() -> None:
    from kernelhead.inspection import monge_gap

    x = np.random.default_rng(0).normal(size=(200, 2))
    y = (x[:, 0] > 0).astype(np.int64)
    gaps = {}
    for match in ("ot", "random"):
        made = fit_map(x, y, MapSettings(match=match, epochs=30, dummies="class_means"))
        start, end = made.standardised(x), torch.from_numpy(made.carried(x))
        gaps[match] = monge_gap(start, end, labels=torch.from_numpy(y))
    assert gaps["ot"] < gaps["random"]


def test_few_points_hold_none_out() -> None:
    x, y = np.array([[0.0], [1.0], [0.1], [1.1]]), np.array([0, 1, 0, 1])
    assert fit_map(x, y, MapSettings(epochs=3)).fitted.watched == []
    many = fit_map(np.tile(x, (5, 1)), np.tile(y, 5), MapSettings(epochs=3))
    assert len(many.fitted.watched) == 3


def test_a_head_of_dummies_is_right_about_them_and_stays() -> None:
    head = nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 3))
    anchors = ring_anchors(3, 2, radius=9.0)
    pretrain_head(head, anchors)
    assert head(anchors).argmax(1).tolist() == [0, 1, 2]
    assert not any(each.requires_grad for each in head.parameters())


def table(rows: int, *, classification: bool = True) -> Any:
    x = np.random.default_rng(0).normal(size=(rows, 2))
    y = x[:, 0] > 0 if classification else x[:, 0]
    return TableEncoder.fit(x, y, classification=classification).transform(x, y)


def test_a_table_model_with_a_head_of_dummies_learns_around_it() -> None:
    drawn = table(60)
    small: dict[str, Any] = {"width": 8, "depth": 2, "heads": 2, "lr": 1e-2, "steps": 60, "dropout": 0.0}
    made = fit_table(drawn, TableSettings(**small, head="dummies"))
    head = made.model.unembed[2]
    assert not head.weight.requires_grad
    again = nn.Linear(8, 2)
    again.load_state_dict(head.state_dict())
    assert again(ring_anchors(2, 8, radius=6.0)).argmax(1).tolist() == [0, 1]  # as it was taught
    assert (made.scores(drawn).argmax(1) == drawn.entries(2).argmax(1)).mean() > 0.85
    with pytest.raises(BadInput, match="head is 'dummies', which is for classes, but targets are numbers"):
        fit_table(table(20, classification=False), TableSettings(**small, head="dummies"))


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"dummies": "line"}, UnknownName, "MapSettings: unknown dummies 'line'"),
        ({"match": "all"}, UnknownName, "MapSettings: unknown match 'all'"),
        ({"radius": -1.0}, BadInput, r"MapSettings: radius is -1\.0"),
        ({"validation": 1.0}, BadInput, r"validation 1\.0; expected 0 or more"),
        ({"patience": 0}, BadInput, "MapSettings: patience is 0"),
        ({"matching_batch": -1}, BadInput, "MapSettings: matching_batch is -1"),
    ],
)
def test_settings_that_are_refused(options: dict[str, Any], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        MapSettings(**options)


def test_words() -> None:
    with pytest.raises(BadInput, match=r"fit_map: classes are \[0\], expected two or more"):
        fit_map(np.zeros((3, 2)), np.zeros(3, np.int64))
    with pytest.raises(BadInput, match=r"fit_map: classes are \[0, 2\]"):
        fit_map(np.zeros((2, 2)), np.array([0, 2]))
    with pytest.raises(UnknownName, match="TableSettings: unknown head 'ring'"):
        TableSettings(head="ring")
    with pytest.raises(BadInput, match=r"TableSettings: radius is -1\.0"):
        TableSettings(radius=-1.0)


@pytest.mark.gpu
def test_a_map_and_a_head_on_a_gpu() -> None:
    x = np.random.default_rng(0).normal(size=(200, 2))
    y = (x[:, 0] > 0).astype(np.int64)
    made = fit_map(x, y, MapSettings(epochs=20), device="cuda")
    assert (made.scores(x).argmax(1) == y).mean() > 0.9
    head = pretrain_head(nn.Linear(2, 2).cuda(), ANCHORS)
    assert head(ANCHORS.cuda()).argmax(1).tolist() == [0, 1]
