"""Figures of a page of the docs: panels side by side, as SVG with the same bytes for the same numbers."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from kernelhead.errors import missing_extra
from kernelhead.records import write_atomically

LOOK = {
    "svg.hashsalt": "kernelhead",
    "svg.fonttype": "none",
    "font.size": 9,
    "axes.grid": True,
    "grid.alpha": 0.3,
}


@dataclass(frozen=True)
class Curve:
    """One curve of a panel.

    Args:
        x: where.
        y: how much.
        label: in the legend; none when empty.
        form: line or marker, as matplotlib writes it, such as "-", "--" or "o".
        colour: number of a colour; curves of one thing share it.

    Example:
        >>> Curve([1, 2], [3, 4], "a").form
        '-'
    """

    x: Sequence[float]
    y: Sequence[float]
    label: str = ""
    form: str = "-"
    colour: int = 0


@dataclass(frozen=True)
class Panel:
    """Curves over one pair of axes.

    Args:
        title: above it.
        axes: the words along x and along y.
        curves: the first one below.
        log: the axes on a log scale, of "x" and "y".

    Example:
        >>> Panel("Ranks", ("layers", "rank"), ()).log
        ()
    """

    title: str
    axes: tuple[str, str]
    curves: Sequence[Curve]
    log: Sequence[str] = ()


def draw_panels(panels: Sequence[Panel], path: Path) -> None:
    """Draw panels side by side into an SVG file.

    Raises:
        MissingExtra: matplotlib is not installed.
        CheckpointError: the file cannot be written.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> panel = Panel("Squares", ("x", "y"), [Curve([1, 2, 3], [1, 4, 9], "x squared")])
        >>> with TemporaryDirectory() as folder:
        ...     draw_panels([panel], Path(folder) / "squares.svg")
        ...     "x squared" in (Path(folder) / "squares.svg").read_text()
        True
    """
    try:
        from matplotlib import style
        from matplotlib.figure import Figure
    except ImportError:
        raise missing_extra("draw_panels", "matplotlib", "cli") from None
    with style.context(["default", LOOK]):
        figure = Figure(figsize=(4.3 * len(panels), 3.8), layout="constrained")
        for panel, plot in zip(panels, figure.subplots(1, len(panels), squeeze=False)[0], strict=True):
            for curve in panel.curves:
                plot.plot(
                    curve.x,
                    curve.y,
                    curve.form,
                    color=f"C{curve.colour}",
                    label=curve.label or None,
                    markersize=4,
                )
            plot.set(title=panel.title, xlabel=panel.axes[0], ylabel=panel.axes[1])
            plot.set(**{f"{side}scale": "log" for side in panel.log})
            if any(curve.label for curve in panel.curves):
                plot.legend(fontsize="small")
        write_atomically(path, lambda file: figure.savefig(file, format="svg", metadata={"Date": None}))
