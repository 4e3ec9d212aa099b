"""Causal graphs as inline SVG: points on a circle, and at the ends of every edge its marks."""

from collections.abc import Mapping, Sequence
from html import escape
from itertools import combinations
from math import cos, hypot, pi, sin
from typing import Any

from kernelhead.errors import BadInput
from kernelhead.report.charts import PALETTE

SIZE, RING, DISC = 320.0, 104.0, 5.0  # of the picture, of the circle of points, of a point
CIRCLE, HEAD = 1, 2
LONGEST = 14  # letters of a name that are shown


def drawn(head: Mapping[str, Any], *, slot: int, label: str) -> str:
    """The graph of one head of a record of `kernelhead graph`.

    Args:
        head: with names and marks.
        slot: position of its run on the page, which fixes its colour.
        label: what the picture shows, for those who do not see it.

    Example:
        >>> svg = drawn({"names": ["a", "b"], "marks": [[0, 2], [1, 0]]}, slot=0, label="a o-> b")
        >>> svg.count("<line"), svg.count("<polygon"), svg.count("<text")
        (1, 1, 2)
    """
    names, marks = head["names"], head["marks"]
    places = [_place(number, len(names)) for number in range(len(names))]
    parts = [
        f"<g><title>{escape(_told(head, a, b))}</title>"
        f"{_edge(places[a], places[b], marks[b][a], marks[a][b])}</g>"
        for a, b in combinations(range(len(names)), 2)
        if marks[a][b]
    ]
    parts += [_point(x, y, str(name)) for (x, y), name in zip(places, names, strict=True)]
    return (
        f'<svg viewBox="0 0 {SIZE:g} {SIZE:g}" role="img" aria-label="{escape(label)}" '
        f'class="graph" style="--edge: var(--run-{slot % len(PALETTE)})">{"".join(parts)}</svg>'
    )


def check_graph(record: Mapping[str, Any], where: str) -> None:
    """See that a record of graphs is one, or empty.

    Raises:
        BadInput: it is neither.
    """
    try:
        for head in record["heads"] if record else ():
            size = len(head.get("names", ()))
            whole = {len(head["nodes"]), len(head["marks"]), *map(len, head["marks"])} if size else {0}
            if whole != {size} or not isinstance(record["path"], str):
                raise TypeError
            _of_head(head, 0)
    except (KeyError, TypeError, AttributeError, ValueError, OverflowError) as error:
        expected = "each with names, nodes, marks, edges, shared and notes, or with a reason"
        raise BadInput(f"{where}: expected a path and heads, {expected}") from error


def pictures(record: Mapping[str, Any], slot: int) -> list[tuple[str, str, str]]:
    """For each head of a record what it is called, a picture, empty where it has no graph, and a caption."""
    return [(called(head), *_of_head(head, slot)) for head in record["heads"]]


def called(head: Mapping[str, Any]) -> str:
    """What a head of a record is called.

    Example:
        >>> called({"head": 3}), called({"head": None})
        ('Head 3', 'Mean of heads')
    """
    return "Mean of heads" if head["head"] is None else f"Head {head['head']}"


def _of_head(head: Mapping[str, Any], slot: int) -> tuple[str, str]:
    name = called(head)
    if "names" not in head:
        return "", f"{name}: no graph, for {head['reason']}."
    shared = ", ".join(f"{name} {each:.2f}" for name, each in head["shared"].items())
    said = f"{name}: {words(head)}."
    beside = f" F1 of its skeleton to those of as many edges by {shared}." if shared else ""
    notes = "".join(f" Note: {note}." for note in head["notes"])
    return drawn(head, slot=slot, label=f"Graph of causes. {said}"), said + beside + notes


def words(head: Mapping[str, Any]) -> str:
    """The edges of such a graph in words.

    Example:
        >>> words({"nodes": [3, 5], "names": ["a", "b"], "edges": [{"from": 3, "marks": "o->", "to": 5}]})
        'a o-> b'
    """
    named = dict(zip(head["nodes"], head["names"], strict=True))
    told = [f"{named[edge['from']]} {edge['marks']} {named[edge['to']]}" for edge in head["edges"]]
    return ", ".join(told) or "no edge"


def _told(head: Mapping[str, Any], a: int, b: int) -> str:
    """The edge between two points in words: a tail is -, a head < or >, a circle o."""
    marks, names = head["marks"], head["names"]
    return f"{names[a]} {'-o<'[marks[b][a] % 3]}-{'-o>'[marks[a][b] % 3]} {names[b]}"


def _place(number: int, count: int) -> tuple[float, float]:
    angle = 2 * pi * number / count - pi / 2
    return SIZE / 2 + RING * cos(angle), SIZE / 2 + RING * sin(angle)


def _edge(start: Sequence[float], end: Sequence[float], first: int, last: int) -> str:
    """A line between the rims of two points, with its marks."""
    length = hypot(end[0] - start[0], end[1] - start[1])
    x, y = (end[0] - start[0]) / length, (end[1] - start[1]) / length
    tips = [
        (point[0] + sign * x * (DISC + 2), point[1] + sign * y * (DISC + 2))
        for point, sign in ((start, 1), (end, -1))
    ]
    (a, b), (c, d) = tips
    line = (
        f'<line x1="{a:.1f}" y1="{b:.1f}" x2="{c:.1f}" y2="{d:.1f}" stroke="var(--edge)" stroke-width="1.4"/>'
    )
    return line + _mark(tips[0], (-x, -y), first) + _mark(tips[1], (x, y), last)


def _mark(tip: tuple[float, float], along: tuple[float, float], mark: int) -> str:
    """What an edge ends with at a tip that points along a direction; nothing for a tail."""
    (a, b), (x, y) = tip, along
    if mark == CIRCLE:
        place = f'cx="{a - 3 * x:.1f}" cy="{b - 3 * y:.1f}"'
        return f'<circle {place} r="3" fill="var(--card)" stroke="var(--edge)"/>'
    if mark != HEAD:
        return ""
    corners = (a, b), (a - 9 * x - 4 * y, b - 9 * y + 4 * x), (a - 9 * x + 4 * y, b - 9 * y - 4 * x)
    points = " ".join(f"{u:.1f},{v:.1f}" for u, v in corners)
    return f'<polygon points="{points}" fill="var(--edge)"/>'


def _point(x: float, y: float, name: str) -> str:
    away = (x - SIZE / 2) / RING
    anchor = "middle" if abs(away) < 0.2 else "start" if away > 0 else "end"
    down = y + 4 + 14 * (y - SIZE / 2) / RING
    short = name if len(name) <= LONGEST else f"{name[: LONGEST - 1]}…"
    return (
        f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{DISC:g}" fill="currentColor"/>'
        f'<text x="{x + 10 * away:.1f}" y="{down:.1f}" text-anchor="{anchor}" font-size="11" '
        f'fill="currentColor">{escape(short)}</text>'
    )
