"""Causal graphs from attention: from partial correlations of its rows, beside what needs no causes."""

from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass, field
from io import StringIO
from itertools import combinations, count
from typing import Any

import numpy as np
import torch
from torch import Tensor

from kernelhead.errors import BadInput, missing_extra, unknown
from kernelhead.inspection.graphs import AncestralGraph, Tree
from kernelhead.inspection.independence import PartialCorrelations, attention_correlation, entries_of
from kernelhead.inspection.orientation import (
    CIRCLE,
    HEAD,
    NONE,
    SELECTION,
    TAIL,
    TAILS,
    Marks,
    completed,
    oriented,
    possible_ancestor,
)
from kernelhead.inspection.rollout import ROUNDED
from kernelhead.pattern import Pattern
from kernelhead.rng import generator
from kernelhead.shapes import check_axes, check_size

METHODS = ("icd", "pc", "fci")
UNIFORM = 0.9  # least correlation of two rows from which on attention is called nearly uniform


def attention_graph(
    pattern: Pattern | Tensor,
    *,
    n: int,
    alpha: float = 0.01,
    values: Tensor | None = None,
    nodes: Sequence[int] | None = None,
    method: str = "icd",
    largest: int | None = 3,
    selection: bool = True,
    ridge: float = 0.0,
) -> AncestralGraph:
    r"""A graph of causes among the points of one attention pattern, read as a linear structural model.

    A model $x = G x + u$ has $x = (I - G)^{-1} u$; attention has $Z = A V$. With A for the inverse and V for
    the noise, points i and j are independent given others where a partial correlation of
    $A C A^\top$ vanishes; see `attention_correlation` and `PartialCorrelations`. What follows from all
    independences is a partial ancestral graph. Of a trained model it is a hypothesis: see `graph_baselines`.

    Shapes: pattern (n m), values (m d).

    Args:
        pattern: of one head, or a mean of heads; rows are the points.
        n: samples that a correlation counts for, with alpha a cut on its size and nothing else; the width of
            the layer in the published form.
        alpha: p-value above which two points are independent.
        values: that the pattern is applied to, for their covariance in place of the identity.
        nodes: points of the graph, by place; the others are marginalised. All by default.
        method: "icd", iterative causal discovery in the published order of search; or "pc" or "fci" of
            causal-learn. The graph of "pc" knows no unseen causes, its circles are open directions.
        largest: most points that are given in a test; any if None.
        selection: of "icd", whether what was selected may hang on the points.
        ridge: on the diagonal of the correlations, for rows that are nearly the same.

    Raises:
        BadInput: the pattern is not finite, nodes are fewer than two or not different points, or a number is
            out of range.
        Degenerate: a row vanishes, or correlations are nearly singular.
        MissingExtra: causal-learn is asked for and not installed.
        ShapeError: pattern and values do not go together.
        UnknownName: no such method.

    Example:
        >>> from kernelhead.data import LinearModel
        >>> chain = LinearModel.of([(0, 1, 0.8), (1, 2, 0.8)])
        >>> graph = attention_graph(torch.from_numpy(chain.attention), n=768)
        >>> graph.edges(), graph.separators
        ([(0, 'o-o', 1), (1, 'o-o', 2)], {(0, 2): (1,)})
    """
    who = "attention_graph"
    if method not in METHODS:
        raise unknown(who, "method", method, METHODS)
    if not 0 < alpha < 1:
        raise BadInput(f"{who}: alpha is {alpha}, expected between 0 and 1")
    if largest is not None:
        check_size(who, "largest", largest, least=0)
    entries = entries_of(who, pattern)
    check_axes(who, pattern=(entries, "n m"))
    chosen = _chosen(who, nodes, len(entries))
    found = attention_correlation(entries, values)[chosen][:, chosen]
    tests = PartialCorrelations(found, n, ridge, chosen)
    asked = _Asked(tests, alpha, largest)
    marks = _icd(asked, selection) if method == "icd" else _by_causal_learn(asked, method)
    apart = [
        (i, j) for i, j in combinations(range(len(chosen)), 2) if not marks[i][j] and (i, j) in asked.sets
    ]
    return AncestralGraph(
        tuple(chosen),
        torch.tensor(marks),
        {_placed(chosen, pair): _placed(chosen, asked.sets[pair]) for pair in apart},
        {_placed(chosen, pair): asked.p_values[pair] for pair in apart},
        method,
        asked.count,
        tests.condition,
        (*_of_rows(entries), *_of_uniform(float(found.min()))),
    )


def _of_rows(entries: Tensor) -> list[str]:
    """What to say of rows that no softmax made: the algebra holds, a reading as shares does not."""
    wide = entries.double()
    sums, least = wide.sum(-1), float(wide.min())
    row = int((sums - 1).abs().argmax())
    if least >= 0 and abs(float(sums[row]) - 1) <= ROUNDED:
        return []
    return [
        f"row {row} sums to {float(sums[row]):.4g} and the least entry is {least:.4g}: a pattern of weights, "
        "not attention, whose rows are shares of 1"
    ]


def _of_uniform(least: float) -> list[str]:
    if least <= UNIFORM:
        return []
    return [f"no two points correlate by less than {least:.3f}: attention is nearly uniform and tells little"]


def graph_baselines(
    pattern: Pattern | Tensor,
    edges: int,
    *,
    values: Tensor | None = None,
    nodes: Sequence[int] | None = None,
    seed: int = 0,
) -> dict[str, Tensor]:
    """Skeletons with a given number of edges that need no causes: what a graph has to be better than.

    Shapes: pattern (n n), values (n d); returns (p, p) each, symmetric, True where two nodes share an edge.

    Args:
        pattern: of one head, or a mean of heads.
        edges: how many, such as those of a graph; all pairs where there are fewer.
        values: as for `attention_graph`.
        nodes: likewise.
        seed: of the random edges.

    Returns:
        "attention": the largest entries of both directions together; "correlation": the largest correlations;
        "random": any.

    Raises:
        BadInput: the pattern is not finite, or nodes are not different points.
        Degenerate: a row vanishes.
        ShapeError: the pattern is not square.

    Example:
        >>> found = graph_baselines(torch.tensor([[1.0, 0.0, 0.0], [0.4, 0.6, 0.0], [0.1, 0.2, 0.7]]), 1)
        >>> [name for name, skeleton in found.items() if skeleton[0, 1]]
        ['attention', 'correlation', 'random']
    """
    who = "graph_baselines"
    check_size(who, "edges", edges, least=0)
    entries = entries_of(who, pattern)
    check_axes(who, pattern=(entries, "n n"))
    chosen = _chosen(who, nodes, len(entries))
    correlation = attention_correlation(entries, values)[chosen][:, chosen]
    size = entries.abs()[chosen][:, chosen]
    drawn = torch.rand(correlation.shape, generator=generator(seed)).to(size)
    return {
        "attention": strongest(size + size.mT, edges),
        "correlation": strongest(correlation.abs(), edges),
        "random": strongest(drawn + drawn.mT, edges),
    }


def strongest(weights: Tensor, edges: int) -> Tensor:
    """The skeleton of the pairs with the largest weights, the first of equal ones, (p, p) both.

    Example:
        >>> strongest(torch.tensor([[0.0, 3.0, 1.0], [3.0, 0.0, 2.0], [1.0, 2.0, 0.0]]), 1)[0]
        tensor([False,  True, False])
    """
    i, j = torch.triu_indices(len(weights), len(weights), 1, device=weights.device)
    order = weights[i, j].argsort(descending=True, stable=True)[:edges]
    made = torch.zeros(weights.shape, dtype=torch.bool, device=weights.device)
    made[i[order], j[order]] = made[j[order], i[order]] = True
    return made


def skeleton_f1(found: Tensor, truth: Tensor) -> float:
    """Twice the shared edges over the edges of both; one where neither has any.

    Shapes: found and truth (p p), symmetric, not zero where there is an edge.

    Raises:
        ShapeError: their sizes differ.

    Example:
        >>> skeleton_f1(torch.tensor([[0, 1], [1, 0]]), torch.tensor([[0, 1], [1, 0]]))
        1.0
    """
    check_axes("skeleton_f1", found=(found, "p p"), truth=(truth, "p p"))
    found, truth = (each.bool().cpu().triu(1) for each in (found, truth))
    both = int(found.sum() + truth.sum())
    return 2 * int((found & truth).sum()) / both if both else 1.0


@dataclass(eq=False)
class _Asked:
    """Tests with what was asked of them: how often, and the first set that separates each pair."""

    tests: PartialCorrelations
    alpha: float
    largest: int | None
    count: int = 0
    sets: dict[tuple[int, int], tuple[int, ...]] = field(default_factory=dict)
    p_values: dict[tuple[int, int], float] = field(default_factory=dict)

    def p_value(self, i: int, j: int, given: tuple[int, ...]) -> float:
        self.count += 1
        found = self.tests.p_value(i, j, given)
        pair = (min(i, j), max(i, j))
        if found > self.alpha and pair not in self.sets:
            self.sets[pair], self.p_values[pair] = given, found
        return found

    def independent(self, i: int, j: int, given: tuple[int, ...]) -> bool:
        return self.p_value(i, j, given) > self.alpha


def _icd(asked: _Asked, selection: bool) -> Marks:
    """Iterative causal discovery: rounds of tests with ever more points given, from ever farther away."""
    p = len(asked.tests.matrix)
    marks = [[NONE if a == b else CIRCLE for b in range(p)] for a in range(p)]
    for size in count():
        offered = False
        for i, j in combinations(range(p), 2):
            for given in _sets(marks, i, j, size) if marks[i][j] else ():
                offered = True
                if asked.independent(i, j, given):
                    marks[i][j] = marks[j][i] = NONE
                    break
        marks = oriented(marks, asked.sets)
        if not offered or size == asked.largest:
            break
    marks = completed(marks, asked.sets, SELECTION) if selection else marks
    return completed(marks, asked.sets, TAILS)


def _sets(marks: Marks, i: int, j: int, size: int) -> list[tuple[int, ...]]:
    """Sets of a size that may separate i and j, in the order in which they are tried."""
    if size == 0:
        return [()]
    if size == 1:
        near = [each for end in (i, j) for each in range(len(marks)) if marks[end][each]]
        return [(each,) for each in dict.fromkeys(near) if each not in (i, j)]
    both = [found for end in (i, j) for found in Tree.grown(marks, end, size).sets(size)]
    fitting = [
        (far, given)
        for far, given in both
        if i not in given
        and j not in given
        and all(possible_ancestor(marks, z, i) or possible_ancestor(marks, z, j) for z in given)
    ]
    return [*dict.fromkeys(given for _, given in sorted(fitting, key=lambda found: found[0]))]


def _by_causal_learn(asked: _Asked, method: str) -> Marks:
    """PC or FCI, which ask for p-values and see no data."""
    try:
        from causallearn.search.ConstraintBased.FCI import fci
        from causallearn.search.ConstraintBased.PC import pc
        from causallearn.utils.cit import CIT_Base, register_ci_test
    except ImportError:
        raise missing_extra(f"attention_graph, {method}", "causal-learn", "causal") from None

    class Test(CIT_Base):  # type: ignore[misc]
        def __init__(self, data: Any, test: Callable[[int, int, tuple[int, ...]], float]) -> None:
            super().__init__(data)
            self.test = test
            self.check_cache_method_consistent("kernelhead", "none")

        def __call__(self, i: int, j: int, given: Any = None) -> float:
            # scipy and numpy numbers are not what a sequence of places is
            return self.test(int(i), int(j), tuple(sorted(int(each) for each in given or ())))

    register_ci_test("kernelhead", Test)
    p = len(asked.tests.matrix)
    empty = np.zeros((p, p))
    options = {"show_progress": False, "test": asked.p_value}
    with redirect_stdout(StringIO()):  # it prints the edges that it finds
        if method == "fci":
            depth = -1 if asked.largest is None else asked.largest
            table = fci(empty, "kernelhead", asked.alpha, depth=depth, **options)[0].graph
        else:
            table = pc(empty, asked.alpha, "kernelhead", max_k=asked.largest, **options).G.graph
    code = {0: NONE, 1: HEAD, -1: TAIL, 2: CIRCLE}
    marks = [[code[int(table[b, a])] for b in range(p)] for a in range(p)]
    if method == "pc":  # a line without ends is one whose direction is open
        for a, b in combinations(range(p), 2):
            if marks[a][b] == marks[b][a] == TAIL:
                marks[a][b] = marks[b][a] = CIRCLE
    return marks


def _chosen(who: str, nodes: Sequence[int] | None, n: int) -> list[int]:
    chosen = [*range(n)] if nodes is None else [int(each) for each in nodes]
    if len(chosen) < 2 or len({*chosen}) < len(chosen) or not all(0 <= each < n for each in chosen):
        raise BadInput(f"{who}: nodes are {chosen}, expected two or more different ones of {n} points")
    return chosen


def _placed(chosen: Sequence[int], places: Sequence[int]) -> Any:
    return tuple(chosen[each] for each in places)
