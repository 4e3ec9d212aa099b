"""Attention drawn small: block means of every head's pattern, of which no n-by-m matrix is made."""

from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn

from kernelhead.errors import BadInput
from kernelhead.inspection.cases import Batch, Calls, calls_of, no_point
from kernelhead.inspection.leading import SoftmaxProducts
from kernelhead.nn.tape import _without_wrappers
from kernelhead.pattern import Dense, Factored, Pattern
from kernelhead.shapes import check_size


@dataclass(frozen=True)
class LayerMap:
    """What one attention applied to one case, in blocks of neighbouring points.

    Attributes:
        path: of the module in its model.
        kind: class of the module.
        points: how many there are on the left and on the right.
        heads: of each head, rows of mean entries, left blocks by right blocks.
    """

    path: str
    kind: str
    points: tuple[int, int]
    heads: list[list[list[float]]]


def attention_maps(
    model: nn.Module, batch: Batch, mask: Tensor | None = None, *, case: int = 0, cells: int = 48
) -> list[LayerMap]:
    r"""Small pictures of every attention of a model on one case of a batch.

    With P and Q the means over blocks of neighbouring left and right points a map is $P^\top A Q$. Factors
    $A = L\,\mathrm{diag}(v)\,R^\top$ give it as $(P^\top L)\,\mathrm{diag}(v)\,(Q^\top R)^\top$, in time and
    memory linear in the points; softmax as $P^\top (A Q)$, a block of rows at a time, in memory linear in
    them. A primal layer is read through the rank-s pattern that it learned. Padded points are left out.

    Args:
        model: any that `spectra` reads.
        batch: as for `spectra`.
        mask: likewise.
        case: number of the case.
        cells: blocks a side, at most; with fewer points each is one.

    Raises:
        BadInput: as for `spectra`, or there is no such case.

    Example:
        >>> host = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 1)
        >>> read = attention_maps(host, torch.zeros(3, 6, 8), cells=2)[0]
        >>> read.path, read.points, len(read.heads), [round(each, 3) for each in read.heads[0][0]]
        ('layers.0.self_attn', (6, 6), 2, [0.167, 0.167])
    """
    check_size("attention_maps", "cells", cells)
    found = []
    for calls in calls_of("attention_maps", model, batch, mask):
        path = _without_wrappers(calls.site.path)
        points, blocks = _of_softmax(calls, case, cells) if calls.cases else _of_tape(calls, case, cells)
        if not bool(torch.isfinite(blocks).all()):
            raise BadInput(f"attention_maps: the pattern at {path!r} holds NaN or infinity")
        # Four digits are more than a picture shows.
        heads = [[[float(f"{each:.4g}") for each in row] for row in head] for head in blocks.tolist()]
        found.append(LayerMap(path, calls.site.kind, points, heads))
    return found


def map_record(found: list[LayerMap], *, data: str, case: int) -> dict[str, Any]:
    """What `attention_maps` found as a JSON record, with which case of which data it was read from."""
    return {"layers": [asdict(each) for each in found], "data": data, "case": case}


def _of_softmax(calls: Calls, case: int, cells: int) -> tuple[tuple[int, int], Tensor]:
    sides = calls.case("attention_maps", case)
    products = SoftmaxProducts(sides)
    heads, n, m = products.shape
    right = _means(m, cells).to(products.key)
    return (n, m), _means(n, cells).to(right).mT @ products.apply(right.expand(heads, -1, -1))


def _of_tape(calls: Calls, case: int, cells: int) -> tuple[tuple[int, int], Tensor]:
    patterns = [each for call in calls.recorded if call.pattern is not None for each in _cases(call.pattern)]
    if not patterns:
        raise BadInput(f"attention_maps: {calls.site.kind} at {calls.site.path!r} recorded no pattern")
    if not 0 <= case < len(patterns):
        path = _without_wrappers(calls.site.path)
        raise BadInput(f"attention_maps: case is {case}, expected one of {len(patterns)} at {path!r}")
    pattern = patterns[case]
    if not _alive(pattern) and any(map(_alive, patterns)):
        raise no_point("attention_maps", case, calls.site.path)
    if isinstance(pattern, Factored):
        left, right = _real(pattern.left), _real(pattern.right)
        pooled = (_means(left.shape[-2], cells).to(left).mT @ left) * pattern.values.unsqueeze(-2)
        columns = _means(right.shape[-2], cells).to(right).mT @ right
        return (left.shape[-2], right.shape[-2]), pooled @ columns.mT
    entries = _real(_real(pattern.entries).mT).mT
    n, m = entries.shape[-2:]
    return (n, m), _means(n, cells).to(entries).mT @ entries @ _means(m, cells).to(entries)


def _cases(pattern: Pattern) -> list[Pattern]:
    """The patterns of a batch one by one, (h n m) each."""
    if isinstance(pattern, Dense):
        return [Dense(each) for each in pattern.entries.float()]
    sides = (pattern.left.float(), pattern.values.float(), pattern.right.float())
    batch = pattern.shape[:-2]
    left, values, right = (
        side.expand(*batch, *side.shape[-axes:]) for side, axes in zip(sides, (2, 1, 2), strict=True)
    )
    return [Factored(*each) for each in zip(left, values, right, strict=True)]


def _real(side: Tensor) -> Tensor:
    """Without points whose rows vanish in all heads: those are padding. Of nothing but zeros all are kept."""
    rows = side.abs().sum((0, 2)) > 0
    return side[:, rows] if bool(rows.any()) else side


def _means(points: int, cells: int) -> Tensor:
    """A column for each of at most so many blocks of neighbours, which takes their mean, (points, cells)."""
    cells = min(points, cells)
    block = torch.arange(points) * cells // points
    means = torch.nn.functional.one_hot(block, cells).double()
    return means / means.sum(0)


def _alive(pattern: Pattern) -> bool:
    """Whether any row of it does not vanish, which all do where no point is real."""
    return bool((pattern.entries if isinstance(pattern, Dense) else pattern.left).any())
