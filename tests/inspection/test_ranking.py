"""Metrics of rankings: their definition by loops, their laws, their words."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kernelhead.errors import BadInput, ShapeError
from kernelhead.inspection import mean_average_precision, precision_at
from tests.oracles import reranking as oracle


@st.composite
def rankings(draw: st.DrawFn) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Rankings of a few queries, maybe not of all items, with relevant ones and junk."""
    items, queries = draw(st.integers(1, 8)), draw(st.integers(1, 3))
    ranked = draw(st.integers(0, items))
    kinds = st.lists(st.sampled_from("+-?"), min_size=items, max_size=items).filter(lambda each: "+" in each)
    drawn = [draw(kinds) for _ in range(queries)]
    orders = [draw(st.permutations(range(items)))[:ranked] for _ in range(queries)]
    relevant, junk = (torch.tensor([[kind == what for kind in row] for row in drawn]) for what in "+?")
    return torch.tensor(orders, dtype=torch.int64).view(queries, ranked), relevant, junk


def sets(mask: torch.Tensor) -> list[set[int]]:
    return [{*row.nonzero()[:, 0].tolist()} for row in mask]


@given(drawn=rankings(), k=st.integers(1, 9))
def test_both_are_their_definition(drawn: tuple[torch.Tensor, torch.Tensor, torch.Tensor], k: int) -> None:
    order, relevant, junk = drawn
    rows = [*zip(order.tolist(), sets(relevant), sets(junk), strict=True)]
    wanted = sum(oracle.average_precision(*row) for row in rows) / len(rows)
    assert mean_average_precision(order, relevant, junk=junk) == pytest.approx(wanted, rel=1e-12)
    wanted = sum(oracle.precision(*row, k) for row in rows) / len(rows)
    assert precision_at(order, relevant, k, junk=junk) == pytest.approx(wanted, rel=1e-6)


@given(drawn=rankings(), k=st.integers(1, 9))
def test_a_perfect_ranking_scores_one_wherever_junk_stands(
    drawn: tuple[torch.Tensor, torch.Tensor, torch.Tensor], k: int
) -> None:
    _, relevant, junk = drawn
    draws = torch.rand(relevant.shape, generator=torch.Generator().manual_seed(k))
    order = torch.where(junk, 2 * draws, relevant.double()).argsort(dim=1, descending=True)
    assert mean_average_precision(order, relevant, junk=junk) == 1.0
    assert precision_at(order, relevant, k, junk=junk) == 1.0


def test_queries_without_a_relevant_item_are_left_out() -> None:
    order = torch.tensor([[0, 1], [0, 1]])
    relevant = torch.tensor([[False, True], [False, False]])
    assert mean_average_precision(order.int(), relevant) == mean_average_precision(order, relevant)
    assert mean_average_precision(order, relevant) == mean_average_precision(order[:1], relevant[:1]) == 0.25


ORDER, RELEVANT = torch.tensor([[0, 1, 2]]), torch.tensor([[True, False, True]])


@pytest.mark.parametrize(
    ("order", "relevant", "junk", "error", "words"),
    [
        (ORDER, ~RELEVANT & RELEVANT, None, BadInput, "none of 1 queries has a relevant item"),
        (ORDER, RELEVANT, RELEVANT, BadInput, "item 0 is both relevant and junk to query 0"),
        (ORDER, RELEVANT.int(), None, BadInput, "`relevant` is torch.int32, expected torch.bool"),
        (ORDER + 1, RELEVANT, None, BadInput, "does not hold places from 0 to 2 alone"),
        (ORDER.bool(), RELEVANT, None, BadInput, "does not hold places from 0 to 2 alone"),
        (ORDER.double(), RELEVANT, None, BadInput, "does not hold places from 0 to 2 alone"),
        (ORDER.clamp_max(1), RELEVANT, None, BadInput, "`order` holds an item twice in one ranking"),
        (ORDER.repeat(2, 1), RELEVANT, None, ShapeError, "axis `q` is 2 in `order` but 1 in `relevant`"),
    ],
)
def test_what_is_refused(
    order: torch.Tensor, relevant: torch.Tensor, junk: torch.Tensor | None, error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=f"mean_average_precision: .*{words}"):
        mean_average_precision(order, relevant, junk=junk)
    with pytest.raises(error, match=f"precision_at: .*{words}"):
        precision_at(order, relevant, 2, junk=junk)


def test_k_is_one_or_more() -> None:
    with pytest.raises(BadInput, match="precision_at: k is 0"):
        precision_at(ORDER, RELEVANT, 0)
