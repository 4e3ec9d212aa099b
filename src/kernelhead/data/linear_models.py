"""Causes that are known: random linear structural models, and sequences whose items bring up others."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kernelhead.errors import BadInput
from kernelhead.shapes import check_size


@dataclass(frozen=True, eq=False)
class LinearModel:
    r"""A linear structural model without cycles, $x = G x + u$ with independent noise u.

    Shapes: weights (p p); [i, j] is the effect of j on i.

    Raises:
        BadInput: weights are not square and finite, or effects go in a circle.

    Example:
        >>> chain = LinearModel.of([(0, 1, 2.0), (1, 2, 3.0)])
        >>> chain.effects.tolist()
        [[1.0, 0.0, 0.0], [2.0, 1.0, 0.0], [6.0, 3.0, 1.0]]
    """

    weights: NDArray[np.float64]

    def __post_init__(self) -> None:
        shape = self.weights.shape
        if len(shape) != 2 or shape[0] != shape[1] or not np.isfinite(self.weights).all():
            raise BadInput(f"LinearModel: weights have shape {shape}, expected finite ones (p, p)")
        left = np.ones(len(self.weights), dtype=bool)
        for _ in left:  # what has no cause among those left is taken out
            left &= (self.weights[:, left] != 0).any(1)
        if left.any():
            raise BadInput(f"LinearModel: effects go in a circle over {np.flatnonzero(left).tolist()}")

    @classmethod
    def of(cls, edges: Sequence[tuple[int, int, float]], nodes: int | None = None) -> "LinearModel":
        """From edges (cause, effect, weight).

        Args:
            edges: the causes.
            nodes: how many there are; as many as the edges name by default.
        """
        size = nodes or 1 + max((max(cause, effect) for cause, effect, _ in edges), default=0)
        weights = np.zeros((size, size))
        for cause, effect, weight in edges:
            weights[effect, cause] = weight
        return cls(weights)

    @property
    def effects(self) -> NDArray[np.float64]:
        r"""Effects of all noise on all variables, $(I - G)^{-1}$, (p, p)."""
        made = one = np.eye(len(self.weights))
        for _ in one:  # powers of G end, and sums of them have no rounding below zero
            made = one + self.weights @ made
        return made

    @property
    def attention(self) -> NDArray[np.float64]:
        """The effects with rows that sum to one: the attention that would mean this model, (p, p).

        Raises:
            BadInput: an effect is negative, which no softmax is.
        """
        effects = self.effects
        if (effects < 0).any():
            raise BadInput(
                f"LinearModel: the least effect is {effects.min():.3g}, and attention is not negative"
            )
        return effects / effects.sum(1, keepdims=True)

    @property
    def skeleton(self) -> NDArray[np.bool_]:
        """Which variables share an edge, (p, p), symmetric."""
        return np.asarray((self.weights != 0) | (self.weights != 0).T)

    def samples(self, count: int, *, seed: int) -> NDArray[np.float64]:
        """Draws of all variables under standard normal noise, (count, p)."""
        noise = _draws("LinearModel.samples", seed).standard_normal((count, len(self.weights)))
        return np.asarray(noise @ self.effects.T)


def linear_model(
    nodes: int, *, neighbours: float = 2.0, weights: tuple[float, float] = (0.5, 1.5), seed: int
) -> LinearModel:
    """A random linear model: each pair in a random order has an edge with the same probability.

    Args:
        nodes: how many variables.
        neighbours: expected edges of a variable, half of them from causes of it.
        weights: between which effects are drawn.
        seed: names the draw.

    Raises:
        BadInput: fewer than two nodes, or more neighbours than other nodes.

    Example:
        >>> linear_model(8, seed=0).weights.shape
        (8, 8)
    """
    check_size("linear_model", "nodes", nodes, least=2)
    if not 0 <= neighbours <= nodes - 1:
        raise BadInput(
            f"linear_model: {neighbours} neighbours, expected from 0 to {nodes - 1} of {nodes} nodes"
        )
    draws = _draws("linear_model", seed)
    size = draws.uniform(*weights, size=(nodes, nodes))
    below = np.tril(draws.random((nodes, nodes)) < neighbours / (nodes - 1), -1)
    order = draws.permutation(nodes)
    return LinearModel((size * below)[np.ix_(order, order)])


@dataclass(frozen=True, eq=False)
class Cascades:
    """Sequences of items that bring each other up, with the graph that they come from.

    Shapes: sequences (s, n) whole numbers from 0 on, an item at most once in each, in the order in which
    they came up; causes (items, items), True at [j, i] where i may bring up j.
    """

    sequences: NDArray[np.int64]
    causes: NDArray[np.bool_]

    @property
    def items(self) -> int:
        """How many there are."""
        return len(self.causes)

    def skeleton(self, case: int) -> NDArray[np.bool_]:
        """Which items of a sequence are cause and effect of each other, (n, n), symmetric."""
        chosen = self.sequences[case]
        within = self.causes[np.ix_(chosen, chosen)]
        return np.asarray(within | within.T)


def draw_cascades(
    sequences: int,
    *,
    items: int = 60,
    length: int = 10,
    neighbours: float = 4.0,
    strength: float = 0.7,
    graph: int = 0,
    seed: int,
) -> Cascades:
    """Sequences from one sparse random graph without cycles: an item brings up its effects, each by chance.

    An item that comes up brings up those of its effects that are not there yet, each with probability
    `strength`, after those that wait already; where none waits, any other item comes up by itself.

    Args:
        sequences: how many.
        items: of the graph.
        length: items of a sequence.
        neighbours: expected causes and effects of an item together.
        strength: how likely an item brings up an effect of it.
        graph: names the graph, so that several draws may share one.
        seed: names the draw.

    Raises:
        BadInput: a size is out of range, or a sequence is longer than there are items.

    Example:
        >>> drawn = draw_cascades(4, items=20, length=6, seed=1)
        >>> drawn.sequences.shape, bool((drawn.causes & drawn.causes.T).any())
        ((4, 6), False)
    """
    who = "draw_cascades"
    for name, size in (("sequences", sequences), ("length", length)):
        check_size(who, name, size)
    if length > items or not 0 <= strength <= 1:
        raise BadInput(
            f"{who}: length is {length} of {items} items, strength {strength}; expected at most as many, and "
            "from 0 to 1"
        )
    causes = linear_model(items, neighbours=neighbours, seed=graph).weights != 0
    draws = _draws(who, seed)
    made = np.zeros((sequences, length), dtype=np.int64)
    for row in made:
        waiting: list[int] = []
        there: set[int] = set()
        for place in range(length):
            free = [each for each in range(items) if each not in there]
            row[place] = waiting.pop(0) if waiting else free[draws.integers(len(free))]
            there.add(int(row[place]))
            brought = np.flatnonzero(causes[:, row[place]])
            lucky = draws.random(len(brought)) < strength
            waiting += [int(each) for each in brought[lucky] if each not in there and each not in waiting]
    return Cascades(made, np.asarray(causes))


def _draws(who: str, seed: int) -> np.random.Generator:
    return np.random.Generator(np.random.Philox(check_size(who, "seed", seed, least=0)))
