"""Graphs of the heads of any model that can be read, with their baselines, and the record of them."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from kernelhead.errors import BadInput, Degenerate
from kernelhead.inspection.cases import Batch, Calls, calls_of, no_point
from kernelhead.inspection.causal import attention_graph, graph_baselines, skeleton_f1
from kernelhead.inspection.graphs import AncestralGraph
from kernelhead.nn.tape import _without_wrappers
from kernelhead.shapes import check_axes, check_size

EACH, MEAN = "each", "mean"


@dataclass(frozen=True, eq=False)
class HeadPatterns:
    """What one attention applied to one case, without padding.

    Shapes: entries (h, n, m); values (h, m, d), None where they are not known.

    Attributes:
        path: of the attention in its model.
        width: of the layer, in the published form the n of `attention_graph`; 0 where it is not known.
    """

    path: str
    entries: Tensor
    values: Tensor | None = None
    width: int = 0

    def __post_init__(self) -> None:
        axes = {"entries": (self.entries, "h n m")}
        check_axes(
            "HeadPatterns", **axes, **({} if self.values is None else {"values": (self.values, "h m d")})
        )


@dataclass(frozen=True, eq=False)
class HeadGraph:
    """The graph of a head with its baselines, or the sentence that says why there is none.

    Attributes:
        head: its number; None for the mean of all heads.
        graph: None where correlations tell nothing.
        baselines: skeletons of as many edges; see `graph_baselines`.
        reason: why there is no graph.
    """

    head: int | None
    graph: AncestralGraph | None
    baselines: dict[str, Tensor]
    reason: str = ""

    @property
    def shared(self) -> dict[str, float]:
        """The F1 score of the graph's skeleton against each baseline: near one, the graph adds little."""
        graph = self.graph
        if graph is None:
            return {}
        return {name: skeleton_f1(graph.marks, each) for name, each in self.baselines.items()}


def head_patterns(
    model: nn.Module, batch: Batch, mask: Tensor | None = None, *, layer: int = -1, case: int = 0
) -> HeadPatterns:
    """What one attention of a model applies to one case of a batch, in float64.

    Args:
        model: any that `spectra` reads.
        batch: as for `spectra`.
        mask: likewise.
        layer: number of the attention among those that the batch reaches, from the last if negative.
        case: number of the case.

    Raises:
        BadInput: as for `spectra`, or there is no such layer or case.

    Example:
        >>> host = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 2)
        >>> read = head_patterns(host, torch.randn(3, 5, 8))
        >>> read.path, read.entries.shape, read.width
        ('layers.1.self_attn', torch.Size([2, 5, 5]), 8)
    """
    who = "head_patterns"
    found = calls_of(who, model, batch, mask)
    if not -len(found) <= layer < len(found):
        raise BadInput(
            f"{who}: layer is {layer}, expected one of {len(found)}: {[c.site.path for c in found]}"
        )
    calls = found[layer]
    path = _without_wrappers(calls.site.path)
    if calls.cases:
        sides = calls.case(who, case)
        wide = replace(sides, query=sides.query.double(), key=sides.key.double(), value=sides.value.double())
        heads, coordinates = wide.value.shape[1], wide.value.shape[3]
        return HeadPatterns(path, wide.pattern().matrix()[0], wide.value[0], heads * coordinates)
    return _recorded(who, path, calls, case)


def busiest_points(entries: Tensor, count: int) -> list[int]:
    """The points of a pattern that get most attention, in their order.

    Shapes: entries (... n m).

    Args:
        count: how many to name.

    Example:
        >>> busiest_points(torch.tensor([[0.1, 0.2, 0.7], [0.1, 0.5, 0.4]]), 2)
        [1, 2]
    """
    check_size("busiest_points", "count", count)
    got = entries.abs().flatten(0, -2).sum(0)
    return sorted(got.argsort(descending=True, stable=True)[:count].tolist())


def head_graphs(
    read: HeadPatterns,
    *,
    head: str | int = EACH,
    n: int | None = None,
    alpha: float = 0.01,
    covariance: bool = False,
    nodes: Sequence[int] | None = None,
    method: str = "icd",
    largest: int | None = 3,
    ridge: float = 0.0,
    seed: int = 0,
) -> list[HeadGraph]:
    """The graphs of all heads, of one, or of their mean, each beside its baselines.

    A head whose correlations tell nothing, such as one that attends to all points alike, gets a sentence in
    place of a graph; the others are read all the same.

    Args:
        read: of `head_patterns`, or made of any patterns.
        head: "each", "mean", or the number of one.
        n: as for `attention_graph`; the width of the layer by default.
        covariance: whether the covariance of the values counts; the identity otherwise.
        alpha, nodes, method, largest, ridge: as for `attention_graph`.
        seed: of the random baseline.

    Raises:
        BadInput: there is no such head, n or values are not known, or nodes are not different points.
        MissingExtra, UnknownName: as for `attention_graph`.

    Example:
        >>> read = HeadPatterns("mine", torch.full((1, 4, 4), 0.25), width=64)
        >>> head_graphs(read)[0].reason[:34]
        'correlations have condition number'
    """
    who, count = "head_graphs", len(read.entries)
    samples = read.width if n is None else n
    if not samples:
        raise BadInput(
            f"{who}: the width of {read.path!r} is not known; give n, the samples that a correlation counts "
            "for, such as 64"
        )
    if covariance and read.values is None:
        raise BadInput(f"{who}: the values of {read.path!r} are not known, so neither is their covariance")
    entries, values = read.entries, read.values if covariance else None
    if head == MEAN:
        # The mean of outputs has no pattern; that of patterns goes with values side by side.
        joined = None if values is None else torch.cat([*values], dim=-1)
        chosen: list[tuple[int | None, Tensor, Tensor | None]] = [(None, entries.mean(0), joined)]
    else:
        if head != EACH and not (isinstance(head, int) and 0 <= head < count):
            raise BadInput(f"{who}: head is {head!r}, expected {EACH!r}, {MEAN!r} or one of {count}")
        numbers = range(count) if head == EACH else [int(head)]
        chosen = [(each, entries[each], None if values is None else values[each]) for each in numbers]
    made = []
    for number, pattern, applied in chosen:
        try:
            graph = attention_graph(
                pattern,
                n=samples,
                alpha=alpha,
                values=applied,
                nodes=nodes,
                method=method,
                largest=largest,
                ridge=ridge,
            )
        except Degenerate as error:
            made.append(HeadGraph(number, None, {}, str(error).partition(": ")[2]))
            continue
        edges = len(graph.edges())
        square = pattern.shape[0] == pattern.shape[1]
        beside = graph_baselines(pattern, edges, values=applied, nodes=nodes, seed=seed) if square else {}
        made.append(HeadGraph(number, graph, beside))
    return made


def graph_record(
    read: HeadPatterns, found: Sequence[HeadGraph], *, names: Sequence[str], facts: dict[str, Any]
) -> dict[str, Any]:
    """What `head_graphs` found as a JSON record.

    Args:
        read: what it was found in.
        found: the graphs.
        names: of all points.
        facts: how they were found, in plain values.

    Raises:
        BadInput: names are not as many as the points.
    """
    if len(names) != read.entries.shape[-2]:
        raise BadInput(f"graph_record: {len(names)} names for {read.entries.shape[-2]} points")
    return {
        "path": read.path,
        **facts,
        "heads": [
            {"head": each.head, "reason": each.reason}
            if each.graph is None
            else {
                "head": each.head,
                **each.graph.to_dict(names),
                "baselines": {
                    name: [
                        [each.graph.nodes[i], each.graph.nodes[j]]
                        for i, j in skeleton.triu(1).nonzero().tolist()
                    ]
                    for name, skeleton in each.baselines.items()
                },
                "shared": each.shared,
            }
            for each in found
        ],
    }


def _recorded(who: str, path: str, calls: Calls, case: int) -> HeadPatterns:
    """From the tape: points whose rows vanish in all heads are padding."""
    patterns = [call.pattern for call in calls.recorded if call.pattern is not None]
    if not patterns:
        raise BadInput(f"{who}: {calls.site.kind} at {path!r} recorded no pattern")
    cases = [each for pattern in patterns for each in pattern.matrix().double()]
    if not 0 <= case < len(cases):
        raise BadInput(f"{who}: case is {case}, expected one of {len(cases)} at {path!r}")
    entries = cases[case]
    rows = entries.abs().sum((0, 2)) > 0
    if not bool(rows.any()):
        raise no_point(who, case, path)
    entries = entries[:, rows]
    if len(rows) == entries.shape[2]:
        entries = entries[:, :, rows]
    return HeadPatterns(path, entries, None, calls.site.width)
