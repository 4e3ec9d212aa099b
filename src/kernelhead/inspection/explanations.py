"""Smallest sets of points without which a prediction changes: searched along a graph, and without one."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations

import torch
from torch import Tensor

from kernelhead.errors import BadInput
from kernelhead.inspection.graphs import AncestralGraph
from kernelhead.rng import generator
from kernelhead.shapes import check_axes, check_size

Changes = Callable[[list[tuple[int, ...]]], Sequence[bool]]
PREFIX = "attention prefix"


@dataclass(frozen=True)
class Explanation:
    """Sets of points of one size, each of which changes the prediction where it is masked; none if empty.

    Attributes:
        sets: all such sets of the smallest size that has one, in the order of the search.
        asked: sets that the model was called with.
        candidates: points that sets were made of.
    """

    sets: tuple[tuple[int, ...], ...]
    asked: int
    candidates: tuple[int, ...]

    @property
    def size(self) -> int | None:
        """Points of a set, None where nothing was found."""
        return len(self.sets[0]) if self.sets else None


def minimal_explanation(
    changes: Changes, graph: AncestralGraph, target: int, *, largest: int = 3, radius: int | None = None
) -> Explanation:
    """The smallest sets of points around a target in a graph that change what is predicted for it (CLEANN).

    Sets come from the points that may separate the target from others; every point of a set is reached over
    points of the set. Sizes are tried from one on, all sets of a size, until some set changes the prediction.

    Args:
        changes: says for each of some sets of points, by place, whether the prediction is another one when
            they are masked; called once a size.
        graph: of the attention of this one input.
        target: the point whose prediction is explained.
        largest: points of a set, at most.
        radius: of the paths from the target; any if None.

    Raises:
        BadInput: the target is not in the graph, a size is below one, or `changes` gives too few answers.

    Example:
        >>> graph = AncestralGraph((0, 1, 2), torch.tensor([[0, 2, 0], [1, 0, 1], [0, 2, 0]]))
        >>> found = minimal_explanation(lambda sets: [{*each} == {0, 2} for each in sets], graph, 1)
        >>> found.sets, found.asked
        (((0, 2),), 3)
    """
    who = "minimal_explanation"
    check_size(who, "largest", largest)
    candidates = tuple(graph.possible_dsep(target, radius))
    sizes = range(1, min(largest, len(candidates)) + 1)
    return _searched(
        who, changes, (graph.explaining_sets(target, size, radius) for size in sizes), candidates
    )


def explanation_baselines(
    changes: Changes, weights: Tensor, target: int, *, count: int, largest: int = 3, seed: int = 0
) -> dict[str, Explanation]:
    """Explanations that need no graph, of as many candidates: what one by a graph has to be better than.

    Shapes: weights (n,), how much the target attends to each point.

    Args:
        changes: as for `minimal_explanation`.
        weights: of the points.
        target: left out.
        count: candidates, as many as the graph gave; all other points where there are fewer.
        largest: points of a set, at most.
        seed: of the random candidates.

    Returns:
        "attention": sets of the points with the largest weights; "random": of any points; "attention prefix":
        the first one, two, three ... points by weight, of all, until the prediction changes.

    Raises:
        BadInput: the target is not a point, a size is below one, or `changes` gives too few answers.

    Example:
        >>> found = explanation_baselines(
        ...     lambda sets: [2 in each for each in sets], torch.tensor([0.2, 0.3, 0.4, 0.1]), 0, count=2
        ... )
        >>> found["attention"].sets, found["attention"].asked
        (((2,),), 2)
    """
    who = "explanation_baselines"
    check_axes(who, weights=(weights, "n"))
    check_size(who, "count", count, least=0)
    check_size(who, "largest", largest)
    if not 0 <= target < len(weights):
        raise BadInput(f"{who}: target is {target}, expected one of {len(weights)} points")
    order = [each for each in weights.argsort(descending=True, stable=True).tolist() if each != target]
    drawn = torch.randperm(len(order), generator=generator(seed)).tolist()
    made = {
        name: _searched(who, changes, _subsets(chosen, largest), tuple(chosen))
        for name, chosen in (
            ("attention", order[:count]),
            ("random", [order[each] for each in drawn[:count]]),
        )
    }
    prefixes = ([tuple(order[: size + 1])] for size in range(len(order)))
    return {**made, PREFIX: _searched(who, changes, prefixes, tuple(order))}


def _searched(
    who: str, changes: Changes, sizes: Iterable[list[tuple[int, ...]]], candidates: tuple[int, ...]
) -> Explanation:
    asked = 0
    for sets in sizes:
        if not sets:
            continue
        answers = [bool(each) for each in changes(sets)]
        if len(answers) != len(sets):
            raise BadInput(f"{who}: `changes` gave {len(answers)} answers to {len(sets)} sets")
        asked += len(sets)
        found = tuple(each for each, yes in zip(sets, answers, strict=True) if yes)
        if found:
            return Explanation(found, asked, candidates)
    return Explanation((), asked, candidates)


def _subsets(chosen: Sequence[int], largest: int) -> Iterable[list[tuple[int, ...]]]:
    return ([*combinations(chosen, size)] for size in range(1, largest + 1))
