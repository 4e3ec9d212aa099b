"""Both regimes of depth in one figure: what a layer adds, exact ranks, and the fitted law beside networks."""

from itertools import pairwise
from math import log

from torch import nn

from kernelhead.inspection import separation_rank
from kernelhead.models import LEVINE2020, THRESHOLD
from kernelhead.nn import PolynomialAttention
from kernelhead.ops import log_separation_rank
from kernelhead.report.panels import Curve, Panel
from kernelhead.rng import seeded

WIDTHS = (2, 4, 64, 768)
DEPTHS = range(1, 13)
EXACT = ((1, 2), (2, 2), (3, 2), (1, 4), (2, 4), (1, 64))  # depths and widths whose ranks are computed
GPT3 = ((12, 768), (24, 1024), (24, 1536), (24, 2048), (32, 2560), (32, 4096), (40, 5140), (96, 12288))


def regime_panels() -> list[Panel]:
    """The rank over depth, what one more layer adds to it, and the law beside the shapes of GPT-3.

    Example:
        >>> [len(panel.curves) for panel in regime_panels()]
        [5, 4, 3]
    """
    ranks = {
        width: [log_separation_rank(depth, width) for depth in (*DEPTHS, DEPTHS.stop)] for width in WIDTHS
    }
    computed = [log(_computed(depth, width)) / log(3) for depth, width in EXACT]
    lines = [
        Curve(DEPTHS, ranks[width][:-1], f"width {width}", colour=place) for place, width in enumerate(WIDTHS)
    ]
    dots = Curve([depth for depth, _ in EXACT], computed, "computed, exactly", "o", len(WIDTHS))
    gains = [
        Curve(
            [depth - log(2 * width + 1) / log(3) for depth in DEPTHS],
            [(after - before) / width for before, after in pairwise(ranks[width])],
            f"width {width}",
            colour=place,
        )
        for place, width in enumerate(WIDTHS)
    ]
    depths = range(1, 101)
    laws = [
        Curve(depths, [LEVINE2020.width(depth) for depth in depths], "fitted law"),
        Curve(range(1, 10), [THRESHOLD.width(depth) for depth in range(1, 10)], "theory threshold", "--", 1),
        Curve([depth for depth, _ in GPT3], [width for _, width in GPT3], "GPT-3 as trained", "o", 2),
    ]
    return [
        Panel("Separation rank", ("layers", "log₃ of the rank"), [*lines, dots], log=("y",)),
        Panel(
            "What one more layer adds", ("layers less log₃(2d + 1)", "gain in log₃, over the width"), gains
        ),
        Panel("Transition width", ("layers", "width"), laws, log=("y",)),
    ]


def _computed(depth: int, width: int) -> int:
    with seeded(0):
        layers = nn.Sequential(*(PolynomialAttention(width, heads=1) for _ in range(depth)))
    return separation_rank(layers).rank
