"""Graphs of heads: which layers and cases are read, what is told of each head, and words."""

import json
from importlib import import_module

import pytest
import torch
from torch import nn

from kernelhead.data import LinearModel
from kernelhead.errors import BadInput, ShapeError
from kernelhead.inspection import (
    HeadPatterns,
    attention_graph,
    busiest_points,
    graph_record,
    head_graphs,
    head_patterns,
)
from kernelhead.inspection.cases import Calls
from kernelhead.models import EventModel, SequenceClassifier, TableModel
from kernelhead.nn import Attended, record
from kernelhead.nn.hosts import find_sites
from kernelhead.rng import seeded
from tests.inputs import points

CHAIN = torch.from_numpy(LinearModel.of([(0, 1, 0.8), (1, 2, 0.8), (2, 3, 0.8)]).attention)


def test_a_layer_is_read_without_padding() -> None:
    with seeded(0):
        model = SequenceClassifier(2, channels=3, width=8, heads=2, attention="softmax").double()
    x, mask = points(2, 6, 3), torch.tensor([[True] * 6, [True] * 4 + [False] * 2])
    read = head_patterns(model, x, mask, layer=0, case=1)
    assert (read.path, read.width, read.entries.shape) == ("blocks.0.attention", 8, (2, 4, 4))
    with record(model, patterns=True) as tape:
        model(x, mask)
    pattern = tape.last("blocks.0.attention").pattern
    assert pattern is not None
    assert torch.allclose(read.entries, pattern.matrix()[1, :, :4, :4], atol=1e-12)
    assert read.values is not None
    assert read.values.shape == (2, 4, 4)
    assert head_patterns(model, x, mask).path == "blocks.1.attention"


def test_recorded_attentions_are_read_without_padding_too() -> None:
    with seeded(0):
        events = EventModel(5, 3, width=8, time_width=8, heads=2)
        table = TableModel([1, 1], categorical=[False, False], width=4, depth=2, heads=2)
        primal = SequenceClassifier(2, channels=3, width=8, heads=2, attention="primal", rank=2)
    times = torch.tensor([[0.0, 1.5, 9.0, 9.5]])
    mask = torch.tensor([[False, True, True, True]])
    window = torch.tensor([[4, 0, 1, 3]]), times, torch.tensor([10.0]), mask
    assert head_patterns(events, window).entries.shape == (2, 4, 4)  # three events and the question
    rows = points(1, 6, 2, dtype=torch.float32), torch.zeros(1, 6, 2, dtype=torch.bool)
    assert head_patterns(table, rows, layer=0).entries.shape == (2, 6, 6)
    read = head_patterns(primal, points(2, 5, 3, dtype=torch.float32))
    assert (read.entries.shape, read.values) == ((2, 5, 5), None)
    with pytest.raises(BadInput, match=r"values of 'blocks.1.attention' are not known"):
        head_graphs(read, covariance=True)


def test_heads_one_by_one_or_their_mean() -> None:
    read = HeadPatterns("mine", torch.stack([CHAIN, CHAIN.flip(0, 1)]), points(2, 4, 5), 768)
    each, mean, second = (head_graphs(read, head=head) for head in ("each", "mean", 1))
    assert [one.head for one in (*each, *mean, *second)] == [0, 1, None, 1]
    graph = each[0].graph
    assert graph is not None
    assert graph.edges() == attention_graph(CHAIN, n=768).edges()
    assert {*each[0].baselines} == {"attention", "correlation", "random"}
    assert each[0].shared["attention"] == 1
    wide, applied = head_graphs(read, covariance=True)[0].graph, read.values
    assert applied is not None
    assert wide is not None
    assert torch.equal(wide.marks, attention_graph(CHAIN, n=768, values=applied[0]).marks)
    assert head_graphs(read, head="mean", covariance=True)[0].graph is not None
    across = head_graphs(HeadPatterns("x", points(1, 3, 5).softmax(-1), width=64))[0]
    assert (across.baselines, across.shared) == ({}, {})


def test_a_head_that_tells_nothing_leaves_the_others_alone() -> None:
    read = HeadPatterns("mine", torch.stack([torch.full((4, 4), 0.25, dtype=torch.float64), CHAIN]), width=64)
    flat, chain = head_graphs(read)
    assert flat.graph is None
    assert flat.shared == {}
    assert flat.reason.startswith("correlations have condition number")
    assert chain.graph is not None
    made = graph_record(read, [flat, chain], names=list("abcd"), facts={"n": 64})
    assert json.loads(json.dumps(made))["heads"][0] == {"head": 0, "reason": flat.reason}
    assert made["heads"][1]["names"] == list("abcd")
    assert len(made["heads"][1]["baselines"]["random"]) == len(made["heads"][1]["edges"])
    with pytest.raises(BadInput, match="2 names for 4 points"):
        graph_record(read, [flat], names=["a", "b"], facts={})


def test_the_busiest_points_keep_their_order() -> None:
    assert busiest_points(torch.tensor([[[0.1, 0.5, 0.0, 0.4]]]), 2) == [1, 3]
    with pytest.raises(BadInput, match="count is 0"):
        busiest_points(CHAIN, 0)


def test_an_attention_without_a_pattern_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    host, x = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), points(2, 3, 8, dtype=torch.float32)
    site = find_sites(host)[0]
    silent = Calls(site, [], [Attended(x)])
    module = import_module("kernelhead.inspection.head_graphs")  # of whose name there is a function too
    monkeypatch.setattr(module, "calls_of", lambda *given: [silent])
    with pytest.raises(BadInput, match=r"MultiheadAttention at 'self_attn' recorded no pattern"):
        head_patterns(host, x)


def test_what_is_not_there_is_named() -> None:
    host = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    x = points(2, 3, 8, dtype=torch.float32)
    with pytest.raises(BadInput, match=r"layer is 1, expected one of 1: \['self_attn'\]"):
        head_patterns(host, x, layer=1)
    with pytest.raises(BadInput, match=r"case is 2, expected one of 2 at 'self_attn'"):
        head_patterns(host, x, case=2)
    primal = SequenceClassifier(2, channels=3, width=8, heads=2, attention="primal", rank=2, depth=1)
    with pytest.raises(BadInput, match=r"case is -1, expected one of 2 at 'blocks.0.attention'"):
        head_patterns(primal, points(2, 3, 3, dtype=torch.float32), case=-1)
    with pytest.raises(ShapeError, match=r"`entries` has shape \(4, 4\)"):
        HeadPatterns("x", CHAIN)
    read = HeadPatterns("x", CHAIN[None])
    with pytest.raises(BadInput, match=r"the width of 'x' is not known; give n, the samples"):
        head_graphs(read)
    for head in (1, "best"):
        with pytest.raises(BadInput, match=r"head is .*, expected 'each', 'mean' or one of 1"):
            head_graphs(read, n=64, head=head)
