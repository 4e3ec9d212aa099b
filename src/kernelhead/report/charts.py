"""Matplotlib figures as inline SVG: the same bytes for the same numbers, in the colours of the page."""

import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from io import StringIO
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernelhead.errors import missing_extra

# The colour of a run on a light and on a dark page; the page declares them as --run-0, --run-1, ...
PALETTE = (
    ("#0b66ad", "#5eb1f2"),
    ("#c44d06", "#ff9a5a"),
    ("#0a7d5a", "#45c9a0"),
    ("#a23b84", "#ea93cf"),
    ("#7d6200", "#e0c04a"),
    ("#4a4fc4", "#a5a8ff"),
    ("#b3261e", "#ff8a80"),
    ("#4d5a66", "#b4c0cc"),
)
GLYPHS = "●■▲◆▼"  # what the page prints for the markers below, in their order
MARKERS = "os^Dv"
FLOOR = 1e-6  # the smallest ratio a log axis shows

_INK = "#123456"  # never seen: every axis and letter takes the text colour of the page instead
_POINTS = 100  # a line of a chart 320 units wide needs no more
_STYLE = {
    "svg.fonttype": "none",
    "svg.hashsalt": "kernelhead",
    "font.size": 9.5,
    "text.color": _INK,
    "axes.edgecolor": _INK,
    "axes.labelcolor": _INK,
    "xtick.color": _INK,
    "ytick.color": _INK,
    "grid.color": _INK,
    "grid.alpha": 0.15,
    "axes.grid": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "lines.markersize": 4,
}


@dataclass(frozen=True)
class Line:
    """One curve of a chart, NaN where there is a gap; the curves of a run share its `slot`.

    Args:
        slot: the position of the run on the page, which fixes its colour and its marker.
        x: where, ascending.
        y: how much.
        low: lower edge of a band around the curve; none when empty.
        high: upper edge of that band.
        dashed: dashed, with hollow markers.
        name: what the curve is of its run, for those who ask for its values.
        heads: a curve for each head, None where it has none, of which a reader may choose one.

    Example:
        >>> Line(0, x=[1, 2], y=[0.9, 0.4]).dashed
        False
    """

    slot: int
    x: Sequence[float] | NDArray[np.float64]
    y: Sequence[float] | NDArray[np.float64]
    low: Sequence[float] | NDArray[np.float64] = ()
    high: Sequence[float] | NDArray[np.float64] = ()
    dashed: bool = False
    name: str = ""
    heads: Sequence[Sequence[float] | NDArray[np.float64] | None] = ()


def chart(
    lines: Sequence[Line], *, name: str, label: str, axes: tuple[str, str], log: Sequence[str] = ()
) -> str:
    """Draw lines over each other and return one SVG element to stand inside an HTML page.

    Its attribute `data-chart` holds the numbers that were drawn and where, for the script of the page.

    Args:
        lines: the curves, first one below.
        name: prefix of every id in the element, unique on the page.
        label: what a reader who cannot see the chart is told.
        axes: the words along x and along y.
        log: the axes on a log scale, of "x" and "y".

    Raises:
        MissingExtra: matplotlib is not installed.

    Example:
        >>> svg = chart([Line(0, [1, 2], [0.5, 0.8])], name="a", label="Accuracy", axes=("epoch", "accuracy"))
        >>> svg[:34]
        '<svg role="img" aria-label="Accura'
    """
    try:
        from matplotlib import style
        from matplotlib.figure import Figure
        from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator
    except ImportError as error:
        raise missing_extra("chart", "matplotlib", "cli") from error

    written = StringIO()
    # "default" first: the reader's own matplotlib settings must not reach the page.
    with style.context(["default", _STYLE]):
        figure = Figure(figsize=(4.4, 2.8), layout="constrained")
        plot = figure.add_subplot(xlabel=axes[0], ylabel=axes[1])
        shown = []
        for number, line in enumerate(lines):
            colour = PALETTE[line.slot % len(PALETTE)][0]
            x, y = np.asarray(line.x, dtype=float), np.asarray(line.y, dtype=float)
            kept = _thinned(x, even_in_log="x" in log)
            step = max(1, len(kept) // 7)
            if len(line.low):
                band = np.asarray(line.low)[kept], np.asarray(line.high)[kept]
                plot.fill_between(x[kept], *band, color=colour, alpha=0.16, linewidth=0, gid=f"band-{number}")
            plot.plot(
                x[kept],
                y[kept],
                "--" if line.dashed else "-",
                color=colour,
                linewidth=1.0 if line.dashed else 1.6,
                marker=MARKERS[line.slot % len(MARKERS)],
                markerfacecolor="none" if line.dashed else colour,
                markevery=(line.slot % step, step),  # staggered, so that curves in one place stay apart
                gid=f"line-{number}",
            )
            heads = [None if head is None else _written(np.asarray(head)[kept]) for head in line.heads]
            values = {"x": _written(x[kept]), "y": _written(y[kept]), "heads": heads}
            shown.append({"run": line.slot, "name": line.name, **values})
        plot.set(xscale="log" if "x" in log else "linear", yscale="log" if "y" in log else "linear")
        plot.xaxis.set_major_locator(MaxNLocator(integer=True))
        for side, axis in (("x", plot.xaxis), ("y", plot.yaxis)):
            if side in log:
                low, high = axis.get_view_interval()
                axis.set_major_locator(LogLocator(subs=(1, 2, 5) if high < 500 * low else (1,)))
                axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
                axis.set_minor_locator(NullLocator())
        figure.savefig(written, format="svg", transparent=True, metadata={"Date": None})
        facts = {
            "axes": axes,
            # Left, top, right and bottom of the axes, in units of the picture.
            "frame": _written(_corners(plot.get_position(), figure.get_size_inches() * 72)),
            "x": [*plot.get_xlim(), "x" in log],
            "y": [*plot.get_ylim(), "y" in log],
            "lines": shown,
        }
    return _inline(written.getvalue(), name, label, facts)


def spectrum_lines(slot: int, heads: Sequence[Sequence[float]]) -> tuple[Line, Line] | None:
    r"""The two curves of one layer over k: what the first k values hold, and how they decay.

    They are $100 \sum_{i \le k} \sigma_i / \sum_i \sigma_i$ and $\sigma_k / \sigma_1$, the mean over heads
    within a band from the lowest to the highest head; ratios below 1e-6 are lifted to it. A head without
    a positive value has no curve; None when no head has one.

    Shapes: heads (h, s), ragged allowed: a shorter head ends in zeros.

    Example:
        >>> share, decay = spectrum_lines(0, [[1.0, 3.0]])
        >>> share.y.tolist(), decay.high.round(3).tolist()
        ([75.0, 100.0], [1.0, 0.333])
    """
    alive = [sorted(head, reverse=True) for head in heads if any(value > 0 for value in head)]
    if not alive:
        return None
    values = np.zeros((len(alive), max(map(len, alive))))  # (h, s)
    for row, head in zip(values, alive, strict=True):
        row[: len(head)] = head
    # By a power of two, which costs no digit: sums of the largest numbers there are would overflow.
    values = np.ldexp(values, -np.frexp(values[:, :1])[1])
    share = 100 * values.cumsum(1) / values.sum(1, keepdims=True)
    decay = np.maximum(values / values[:, :1], FLOOR)
    x = np.arange(1, values.shape[1] + 1, dtype=np.float64)
    rows = iter(range(len(alive)))
    row_of = [next(rows) if any(value > 0 for value in head) else None for head in heads]
    return _banded(slot, x, share, row_of), _banded(slot, x, decay, row_of)


def alignment_lines(
    slot: int, heads: Sequence[float | None], baselines: Sequence[Sequence[float | None]]
) -> tuple[Line, Line] | None:
    """Two curves over heads: a figure, and its highest baseline, dashed, in a band down to the lowest.

    A head without the figure is a gap; None when no head has it.

    Shapes: heads (h), baselines (any, h).

    Example:
        >>> own, chance = alignment_lines(0, [0.9, None], [[0.5, None], [0.7, None]])
        >>> own.y.tolist(), chance.y.tolist(), chance.low.tolist()
        ([0.9, nan], [0.7, nan], [0.5, nan])
    """
    own = np.array(heads, dtype=np.float64)  # None is NaN
    if np.isnan(own).all():
        return None
    rows = np.array(baselines, dtype=np.float64)
    x = np.arange(len(own), dtype=np.float64)
    highest = Line(slot, x, rows.max(0), rows.min(0), rows.max(0), dashed=True, name="highest baseline")
    return Line(slot, x, own, name="values"), highest


def _banded(
    slot: int, x: NDArray[np.float64], rows: NDArray[np.float64], row_of: Sequence[int | None]
) -> Line:
    heads = [None if row is None else rows[row] for row in row_of]
    return Line(slot, x, rows.mean(0), rows.min(0), rows.max(0), heads=heads)


def _written(numbers: NDArray[np.float64]) -> list[float | None]:
    """With four digits, which is more than a chart shows; a gap is None."""
    return [float(f"{each:.4g}") if math.isfinite(each) else None for each in numbers.tolist()]


def _corners(box: Any, size: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.array([box.x0 * size[0], (1 - box.y1) * size[1], box.x1 * size[0], (1 - box.y0) * size[1]])


def _thinned(x: NDArray[np.float64], *, even_in_log: bool) -> NDArray[np.intp]:
    """Positions to draw: all of a short line, else evenly spaced ones with both ends."""
    if len(x) <= _POINTS:
        return np.arange(len(x))
    if even_in_log:
        return np.unique(np.geomspace(1, len(x), _POINTS).round().astype(np.intp)) - 1
    return np.linspace(0, len(x) - 1, _POINTS).round().astype(np.intp)


def _inline(svg: str, name: str, label: str, facts: dict[str, Any]) -> str:
    """Make a standalone file one element: no prolog, metadata, style, font or namespace, own ids."""
    svg = svg[svg.index("<svg") :].strip()
    svg = re.sub(r"<metadata>.*?</metadata>|<style.*?</style>|font-family: [^;]*; ", "", svg, flags=re.DOTALL)
    svg = svg.replace("xlink:href=", "href=")
    svg = re.sub(r' id="|href="#|url\(#', rf"\g<0>{name}-", svg)
    svg = re.sub(r' d="[^"]*"', lambda path: re.sub(r"(\.\d\d)\d+", r"\1", path[0]), svg)
    svg = re.sub(r"\s*\n\s*", "\n", svg)
    for position, (light, _) in enumerate(PALETTE):
        svg = svg.replace(light, f"var(--run-{position})")
    svg = svg.replace(_INK, "currentColor")
    viewbox = re.search(r'viewBox="[^"]*"', svg)
    data = escape(json.dumps(facts, separators=(",", ":"), allow_nan=False))
    opening = (
        f'<svg role="img" aria-label="{escape(label)}" data-name="{escape(name)}" data-chart="{data}" '
        f"{viewbox[0] if viewbox else ''}>"
    )
    _, top, _, bottom = facts["frame"]
    guide = f'<line class="guide" y1="{top}" y2="{bottom}" style="display: none"/>'
    return opening + svg[svg.index(">") + 1 : svg.rindex("</svg>")] + guide + "</svg>"
