"""RerankerModel: parity with the published network in loops, its laws, its words."""

import copy
import pickle

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.flop_counter import FlopCounterMode

from kernelhead.errors import BadInput, ShapeError, UnknownName
from kernelhead.models import RerankerModel, first_round, list_affinity, list_items, rerank
from kernelhead.rng import seeded
from tests.inputs import keep, points
from tests.oracles import reranking as oracle
from tests.tolerance import assert_exact

ATTENTIONS = ("softmax", "primal", "nystrom")
attentions = pytest.mark.parametrize("attention", ATTENTIONS)


def made(attention: str = "softmax", *, anchors: int = 5, seed: int = 0, **options: float) -> RerankerModel:
    """In float64, with weights far from zero."""
    with seeded(seed):
        model = RerankerModel(
            anchors, width=8, heads=2, attention=attention, rank=3, landmarks=4, **options
        ).double()
        for weight in model.parameters():
            torch.nn.init.normal_(weight, std=0.4)
    return model


def features(batch: int, n: int, *, anchors: int = 5, seed: int = 0) -> torch.Tensor:
    return list_affinity(points(batch, n, 6, seed=seed), anchors)


@given(n=st.integers(1, 7), seed=st.integers(0, 99))
def test_parity_with_the_published_network(n: int, seed: int) -> None:
    model, affinity = made(seed=seed), features(2, n, seed=seed)
    for row in range(2):
        assert_exact(affinity[row], torch.nn.functional.pad(
            oracle.affinity(points(2, n, 6, seed=seed)[row], 5), (0, max(5 - n, 0))
        ))  # fmt: skip
        scores, again = oracle.scores(model.state_dict(), affinity[row], depth=2, heads=2)
        assert_exact(model(affinity)[row], scores)
        assert_exact(model.reconstruction(model.encode(affinity))[row], again)


def test_the_published_size() -> None:
    with torch.device("meta"):
        model = RerankerModel(512, width=768, heads=12, dropout=0.1, drop_path=0.1)
    assert sum(weight.numel() for weight in model.parameters()) == 14_963_456
    assert {block.drop_path for block in model.blocks} == {0.0, 0.1}
    assert model.blocks[0].attention.dropout == 0.1
    assert {each.eps for each in model.modules() if isinstance(each, torch.nn.LayerNorm)} == {1e-5}


@attentions
@given(seed=st.integers(0, 99))
def test_shuffling_candidates_changes_nothing_but_their_order(attention: str, seed: int) -> None:
    model, affinity = made(attention), features(1, 9, seed=seed)
    order = torch.randperm(8, generator=torch.Generator().manual_seed(seed)) + 1
    shuffled = torch.cat([affinity[:, :1], affinity[:, order]], dim=1)
    assert_exact(model(shuffled)[:, 1:], model(affinity)[:, order])


@attentions
@pytest.mark.parametrize("garbage", [1e30, float("nan"), float("inf")], ids=str)
def test_padding_has_no_influence(attention: str, garbage: float) -> None:
    model, affinity, mask = made(attention), features(2, 7), keep([7, 4], 7)
    filled = affinity.masked_fill(~mask[..., None], garbage)
    found = model(filled, mask)
    assert_exact(found[1:, :4], model(affinity[1:, :4]))
    assert_exact(found[:1], model(affinity[:1]))
    assert not found[1, 4:].any()


@attentions
def test_gradients_reach_every_weight(attention: str) -> None:
    model, affinity = made(attention), features(2, 7)
    encoded = model.encode(affinity, keep([7, 4], 7))
    (model.scores(encoded).sum() + model.reconstruction(encoded).square().sum()).backward()
    for name, weight in model.named_parameters():
        assert name.endswith("root") or bool(weight.grad.isfinite().all()), name


def test_the_score_of_the_query_is_one() -> None:
    assert_exact(made()(features(2, 7))[:, 0], torch.ones(2).double())


@attentions
def test_copies_answer_alike(attention: str) -> None:
    model, affinity = made(attention), features(2, 7)
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert torch.equal(twin(affinity), model(affinity))
    other = made(attention, seed=1)
    other.load_state_dict(model.state_dict())
    assert torch.equal(other(affinity), model(affinity))


@attentions
@given(seed=st.integers(0, 99))
def test_reranking_a_shuffled_database_finds_the_same_items(attention: str, seed: int) -> None:
    model, query, database = made(attention), points(2, 6, seed=seed), points(11, 6, seed=seed + 1)
    moved = torch.randperm(11, generator=torch.Generator().manual_seed(seed))
    found, other = (rerank(model, query, each, 7) for each in (database, database[moved]))
    assert torch.equal(moved[other.order], found.order)


def test_reranking_scores_lists_and_leaves_the_tail() -> None:
    model, query, database = made(), points(3, 6), points(11, 6, seed=1)
    model.train()
    found, first = rerank(model, query, database, 6, batch=2), first_round(query, database)
    assert model.training
    assert torch.equal(found.order[:, 6:], first.order[:, 6:])
    for row in range(3):
        items = list_items(query[row : row + 1], database, first.order[row : row + 1, :6])
        scores = model.eval()(list_affinity(items, 5))[0, 1:]
        place = scores.argsort(descending=True)
        assert torch.equal(found.order[row, :6], first.order[row, place])
        assert_exact(found.scores[row, :6], scores[place].detach())


def test_a_list_longer_than_the_database_is_all_of_it() -> None:
    model, query, database = made(), points(2, 6), points(4, 6, seed=1)
    assert torch.equal(rerank(model, query, database, 99).order, rerank(model, query, database, 4).order)
    own = torch.tensor([1])
    assert rerank(model, database[own], database, 99, own=own, sides="both").order.shape == (1, 3)


def operations(k: int) -> int:
    """Of one list with primal attention."""
    model = RerankerModel(16, width=16, heads=2, attention="primal", rank=3, landmarks=8)
    with FlopCounterMode(display=False) as counter:
        model(torch.rand(1, k, 16))
    return counter.get_total_flops()


def test_operations_grow_by_the_same_number_for_each_candidate_with_primal_attention() -> None:
    small, middle, large = (operations(k) for k in (1024, 2048, 4096))
    assert large - middle == 2 * (middle - small)


def test_dropout_is_of_training_alone() -> None:
    model, affinity = made(dropout=0.5, drop_path=0.5), features(2, 7)
    with seeded(0):
        assert not torch.equal(model.train()(affinity), model(affinity))
    assert torch.equal(model.eval()(affinity), model(affinity))


def test_what_is_refused() -> None:
    with pytest.raises(BadInput, match=r"`affinity` has shape \(2, 7, 4\), expected \(b, n, 5\)"):
        made()(torch.zeros(2, 7, 4))
    with pytest.raises(BadInput, match=r"`affinity` has shape \(2, 0, 5\)"):
        made()(torch.zeros(2, 0, 5))
    with pytest.raises(ShapeError, match=r"RerankerModel: `mask` has shape \(2, 6\)"):
        made()(features(2, 7), keep([6, 6], 6))
    with pytest.raises(BadInput, match="RerankerModel: anchors is 0"):
        RerankerModel(0)
    with pytest.raises(BadInput, match="RerankerModel: depth is 0"):
        RerankerModel(4, depth=0)
    with pytest.raises(UnknownName, match="unknown attention 'prim'"):
        RerankerModel(4, attention="prim")
    with pytest.raises(BadInput, match="rerank: k is 0"):
        rerank(made(), points(1, 6), points(3, 6), 0)
