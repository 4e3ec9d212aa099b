"""Partial ancestral graphs: what is known of causes, what separates, and which sets are worth trying."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any

import torch
from torch import Tensor

from kernelhead.errors import BadInput
from kernelhead.inspection.orientation import CIRCLE, HEAD, NONE, TAIL, Marks
from kernelhead.shapes import check_axes

ENDS = {NONE: "", CIRCLE: "o", HEAD: ">", TAIL: "-"}
DOT = {CIRCLE: "odot", HEAD: "normal", TAIL: "none"}


@dataclass(frozen=True, eq=False)
class AncestralGraph:
    """A graph over points, whose marks say what all causal models with the same independences share.

    An arrow head at b, a *-> b: b is no cause of a. A tail at a, a -* b: a is a cause of b, or of what was
    selected by. A circle: some models have a head there and some a tail. Two heads: neither is a cause of
    the other, something unseen is of both.

    Shapes: marks (p p), whole numbers; [a, b] is the mark at b of the edge between a and b, in the order of
    `nodes`: 0 none, 1 circle, 2 head, 3 tail.

    Args:
        nodes: the points, by their places in what was read.
        marks: of all edges.
        separators: for pairs without edge the points, by place, that separate them.
        p_values: of these independences.
        method: how it was found.
        tests: of independence that were made.
        condition: condition number of the correlations, one for independent points.
        notes: what a reader should know of them, in sentences.

    Raises:
        ShapeError: marks do not go with the nodes.
        BadInput: marks are no such numbers, or of one end of an edge only.

    Example:
        >>> graph = AncestralGraph((4, 7, 9), torch.tensor([[0, 2, 0], [1, 0, 1], [0, 2, 0]]))
        >>> graph.edges()
        [(4, 'o->', 7), (7, '<-o', 9)]
    """

    nodes: tuple[int, ...]
    marks: Tensor
    separators: Mapping[tuple[int, int], tuple[int, ...]] = field(default_factory=dict)
    p_values: Mapping[tuple[int, int], float] = field(default_factory=dict)
    method: str = ""
    tests: int = 0
    condition: float = 1.0
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        who, nodes = "AncestralGraph", torch.tensor(self.nodes)
        check_axes(who, nodes=(nodes, "p"), marks=(self.marks, "p p"))
        table = self.marks.tolist()
        if self.marks.is_floating_point() or not {each for row in table for each in row} <= {*ENDS}:
            raise BadInput(f"{who}: marks are {self.marks.dtype}, expected whole numbers from 0 to 3")
        if ((self.marks > 0) != (self.marks.mT > 0)).any() or self.marks.diagonal().any():
            raise BadInput(f"{who}: an edge has a mark at one end only, or leads from a point to itself")

    @property
    def skeleton(self) -> Tensor:
        """Which points share an edge, (p, p), symmetric."""
        return self.marks > 0

    def edges(self) -> list[tuple[int, str, int]]:
        """All edges (a, marks, b) by the places of their points, a first among the nodes."""
        table = self.marks.tolist()
        return [
            (self.nodes[a], f"{ENDS[table[b][a]].replace('>', '<')}-{ENDS[table[a][b]]}", self.nodes[b])
            for a, b in combinations(range(len(self.nodes)), 2)
            if table[a][b]
        ]

    def possible_dsep(self, node: int, radius: int | None = None) -> dict[int, int]:
        """Points that may have to be given to separate a point from others, with their distances from it.

        From the point on, a path goes over u, v, w where u and w share an edge or v is a collider of them.

        Args:
            node: the point, by place.
            radius: of the longest path; any if None.

        Raises:
            BadInput: the point is not in the graph.
        """
        tree = Tree.grown(self.marks.tolist(), self._place(node), radius)
        return {self.nodes[each]: far for each, far in sorted(tree.distances().items())}

    def explaining_sets(self, node: int, size: int, radius: int | None = None) -> list[tuple[int, ...]]:
        """Sets of such points, each reached over others of its set, nearest first.

        Raises:
            BadInput: the point is not in the graph.
        """
        tree = Tree.grown(self.marks.tolist(), self._place(node), radius)
        return [tuple(self.nodes[each] for each in chosen) for _, chosen in sorted(tree.sets(size), key=_far)]

    def to_dict(self, names: Sequence[str] | None = None) -> dict[str, Any]:
        """As a table that JSON can hold.

        Args:
            names: of all places that were read; left out without.
        """
        pairs = sorted(self.separators)
        return {
            "nodes": [*self.nodes],
            **({} if names is None else {"names": [names[each] for each in self.nodes]}),
            "marks": self.marks.tolist(),
            "edges": [{"from": a, "marks": marks, "to": b} for a, marks, b in self.edges()],
            "separators": [
                {"pair": [*pair], "given": [*self.separators[pair]], "p_value": self.p_values.get(pair)}
                for pair in pairs
            ],
            "method": self.method,
            "tests": self.tests,
            "condition": self.condition,
            "notes": [*self.notes],
        }

    def to_dot(self, names: Sequence[str] | None = None, title: str = "graph") -> str:
        """As text for GraphViz, circles as hollow dots.

        Args:
            names: of all places that were read; their numbers without.
            title: of the graph.

        Example:
            >>> graph = AncestralGraph((0, 1), torch.tensor([[0, 2], [1, 0]]))
            >>> print(graph.to_dot(["rain", "wet"]), end="")
            digraph "graph" {
              0 [label="rain"];
              1 [label="wet"];
              0 -> 1 [dir=both, arrowtail=odot, arrowhead=normal];
            }
        """
        table = self.marks.tolist()
        lines = [
            f'  {each} [label="{_quoted(str(each) if names is None else names[each])}"];'
            for each in self.nodes
        ]
        lines += [
            f"  {self.nodes[a]} -> {self.nodes[b]} "
            f"[dir=both, arrowtail={DOT[table[b][a]]}, arrowhead={DOT[table[a][b]]}];"
            for a, b in combinations(range(len(self.nodes)), 2)
            if table[a][b]
        ]
        return "\n".join([f'digraph "{_quoted(title)}" {{', *lines, "}", ""])

    def _place(self, node: int) -> int:
        if node not in self.nodes:
            raise BadInput(f"AncestralGraph: {node} is not one of its points {[*self.nodes]}")
        return self.nodes.index(node)


@dataclass(frozen=True, eq=False)
class Tree:
    """Paths from a point over possible colliders, every edge on one of them at most."""

    node: int
    depth: int = 0
    branches: "list[Tree]" = field(default_factory=list)

    @classmethod
    def grown(cls, m: Marks, root: int, radius: int | None = None) -> "Tree":
        """All paths of a graph from a point, the shortest first."""
        made, p = cls(root), len(m)
        free = {(a, b) for a in range(p) for b in range(p) if m[a][b] and root not in (a, b)}
        made.branches.extend(cls(each, 1) for each in range(p) if m[root][each])
        open_ = [(root, branch) for branch in made.branches]
        while open_:
            before, tree = open_.pop(0)
            if radius is not None and tree.depth >= radius:
                continue
            v = tree.node
            for w in range(p):
                collider = m[before][v] == m[w][v] == HEAD
                if (v, w) in free and w != before and (m[before][w] or collider):
                    free -= {(v, w), (w, v)}
                    tree.branches.append(cls(w, tree.depth + 1))
                    open_.append((v, tree.branches[-1]))
        return made

    def distances(self) -> dict[int, int]:
        """The points of the tree and their least depths."""
        found: dict[int, int] = {}
        open_ = [*self.branches]
        while open_:
            tree = open_.pop()
            found[tree.node] = min(tree.depth, found.get(tree.node, tree.depth))
            open_.extend(tree.branches)
        return found

    def sets(self, size: int) -> list[tuple[int, tuple[int, ...]]]:
        """Sets of which every point is reached over others of the set, with the sums of their distances."""
        far = self.distances()
        return [
            (sum(far[each] for each in chosen), chosen)
            for chosen in combinations(sorted(far), size)
            if self._within({*chosen}) == {*chosen}
        ]

    def _within(self, chosen: set[int]) -> set[int]:
        """Points of a set that are reached over it."""
        found: set[int] = set()
        open_ = [*self.branches]
        while open_:
            tree = open_.pop()
            if tree.node in chosen:
                found.add(tree.node)
                open_.extend(tree.branches)
        return found


def _far(found: tuple[int, tuple[int, ...]]) -> int:
    return found[0]


def _quoted(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", " ")
