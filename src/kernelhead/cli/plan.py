"""kernelhead plan: depth, width and heads of a network for a budget, or where a shape stands."""

import re
from dataclasses import asdict
from pathlib import Path
from typing import Any

from jsonargparse import ArgumentParser, Namespace
from rich.table import Table

from kernelhead.cli.places import FILE, check_place
from kernelhead.cli.terminal import note, say, say_json, show
from kernelhead.errors import BadInput
from kernelhead.models import LAWS, Regime, ShapeCost, Sizing, plan_shape, shape_cost, shape_regime
from kernelhead.report.panels import draw_panels
from kernelhead.training.depth import best_depths
from kernelhead.training.ledger import Ledger
from kernelhead.training.regimes import regime_panels

HELP = "choose depth and width of a network to build from a budget of weights, or say where a shape stands"
EXAMPLE = """kernelhead plan --params 85M --vocabulary 32000
kernelhead plan --depth 24 --width 1024 --json
kernelhead plan --plot regimes.svg"""
UNITS = {"": 1, "K": 10**3, "M": 10**6, "B": 10**9, "T": 10**12}


def arguments(parser: ArgumentParser) -> None:
    """What the verb takes."""
    parser.add_argument(
        "--params", type=str, help="budget of weights without embeddings, such as 85M or 1.3B"
    )
    parser.add_argument(
        "--depth", type=int, help="layers: with --width a shape to judge, alone in place of the law's"
    )
    parser.add_argument("--width", type=int, help="width of a shape to judge, with --depth")
    parser.add_argument("--heads", type=int, help="of every attention; by default of about --head features")
    parser.add_argument("--head", type=int, default=64, help="features of a head that are aimed at")
    parser.add_argument(
        "--multiple", type=int, default=8, help="of which the width is one; 1 is nearest to the law"
    )
    parser.add_argument("--law", default="levine2020", help=f"of the depth: {' or '.join(LAWS)}")
    parser.add_argument("--vocabulary", type=int, default=0, help="tokens, whose embedding is counted apart")
    parser.add_argument("--context", type=int, default=1024, help="tokens of a context, for the costs")
    parser.add_argument("--plot", type=FILE, help="draw both regimes and the law into an SVG file")
    parser.add_argument("--ledger", type=FILE, help="say the best depths in a ledger of `reproduce depth`")
    parser.add_argument("--json", action="store_true", help="print a JSON record")


def run(chosen: Namespace, given: list[str]) -> int:
    """Plan a budget or judge a shape, and say what it costs and how far it can be trusted."""
    if not any(value is not None for value in (chosen.params, chosen.width, chosen.plot, chosen.ledger)):
        raise BadInput("plan: expected --params, or --depth and --width, or --plot, or --ledger")
    if chosen.plot is not None:
        check_place("plan", chosen.plot)
    if chosen.params is not None and chosen.width is not None:
        raise BadInput("plan: --params asks for a width and --width gives one; leave one of them out")
    if chosen.width is not None and chosen.depth is None:
        raise BadInput(f"plan: --width is {chosen.width}, but a shape has a --depth too")
    record: dict[str, Any] = {}
    if chosen.params is not None:
        record |= _planned(chosen)
    if chosen.width is not None:
        record |= _judged(chosen)
    if chosen.ledger is not None:
        record["best"] = _best(chosen.ledger, quiet=chosen.json)
    if chosen.plot is not None:
        draw_panels(regime_panels(), chosen.plot)
        record["plot"] = str(chosen.plot)
    if chosen.json:
        say_json(record)
    elif chosen.plot is not None:
        note(f"both regimes and the law are drawn in {chosen.plot}")
    return 0


def count_of(word: str) -> int:
    """A number of weights in words: 85M, 1.3B, 300_000.

    Raises:
        BadInput: it is no such word.

    Example:
        >>> count_of("1.3B"), count_of("85m")
        (1300000000, 85000000)
    """
    found = re.fullmatch(r"(\d[\d_,]*(?:\.\d+)?|\d+(?:\.\d+)?e\d+)([KMBT]?)", word.strip(), re.IGNORECASE)
    if found is None:
        raise BadInput(f"plan: --params is {word!r}, expected a number of weights such as 85M or 1.3B")
    number, unit = found.groups()
    return round(float(number.replace(",", "").replace("_", "")) * UNITS[unit.upper()])


def _planned(chosen: Namespace) -> dict[str, Any]:
    budget = count_of(chosen.params)
    options = {name: getattr(chosen, name) for name in ("heads", "head", "multiple", "vocabulary")}
    sizing = plan_shape(budget, depth=chosen.depth, law=chosen.law, **options)
    others = {depth for depth in (sizing.depth // 2, 2 * sizing.depth, sizing.least_depth) if depth > 0}
    shapes = [sizing, *_fitting(budget, sorted(others - {sizing.depth}), options)]
    costs = [
        shape_cost(each.depth, each.width, points=chosen.context, vocabulary=chosen.vocabulary)
        for each in shapes
    ]
    if not chosen.json:
        say(
            f"{sizing.depth} layers of width {sizing.width} with {sizing.heads} heads: {sizing.params:,} of "
            f"{budget:,} weights, and {sizing.embedding_params:,} of embeddings"
        )
        _say_regime(sizing.regime)
        _say_costs(shapes, costs)
        _say_notes(sizing.regime)
    cost = {
        "cost": asdict(costs[0]),
        "others": [
            {"depth": each.depth, "width": each.width, "over": other.over(costs[0])}
            for each, other in zip(shapes[1:], costs[1:], strict=True)
        ],
    }
    return {**asdict(sizing), **cost}


def _fitting(budget: int, depths: list[int], options: dict[str, Any]) -> list[Sizing]:
    """The same budget at other depths, where it holds them."""
    made = []
    for depth in depths:
        try:
            made.append(plan_shape(budget, depth=depth, **options))
        except BadInput:
            continue
    return made


def _judged(chosen: Namespace) -> dict[str, Any]:
    regime = shape_regime(chosen.depth, chosen.width)
    cost = shape_cost(chosen.depth, chosen.width, points=chosen.context, vocabulary=chosen.vocabulary)
    if not chosen.json:
        say(f"{regime.depth} layers of width {regime.width}: {regime.params:,} weights without embeddings")
        _say_regime(regime)
        say(f"{cost.train_flops:.3g} operations a token, {cost.train_bytes / 2**30:.3g} GiB in training")
        _say_notes(regime)
    return {"regime": asdict(regime), "cost": asdict(cost)}


def _say_regime(regime: Regime) -> None:
    low, high = regime.law_range
    words = {"near": "near the law", "deeper": "deeper than the law", "shallower": "shallower than the law"}
    say(
        f"{words[regime.side]}: {regime.law_depth:.1f} layers at this size ({low:.1f} to {high:.1f} with its "
        "errors); theory has depth act alone up to "
        f"{regime.threshold:.1f} layers, "
        + ("which this is below" if regime.efficient else "and from there on as a product with width")
        + f"; one more layer adds {regime.layer_gain:.4g} to log3 of the rank, {regime.log_rank:.4g}"
    )


def _say_notes(regime: Regime) -> None:
    for remark in regime.notes:
        note(remark)


def _say_costs(shapes: list[Sizing], costs: list[ShapeCost]) -> None:
    """The plan, and shapes of other depths, with what they are over it."""
    table = Table(
        "layers", "width", "weights", "operations a token", "kept a token, KiB", "in training, GiB", "time",
        title="what it costs beside other depths, counted; ratios to the plan in brackets",
        title_justify="left",
    )  # fmt: skip
    for shape, cost in zip(shapes, costs, strict=True):
        over = cost.over(costs[0])
        table.add_row(
            str(shape.depth),
            str(shape.width),
            f"{shape.params:,}",
            f"{cost.train_flops:.3g} ({over['train_flops']:.2f})",
            f"{cost.kept_bytes / 2**10:,.0f} ({over['kept_bytes']:.2f})",
            f"{cost.train_bytes / 2**30:.3g}",
            f"({over['train_seconds']:.2f})",
        )
    show(table)


def _best(path: Path, *, quiet: bool) -> dict[str, Any]:
    rows = Ledger(path).rows()
    if not rows:
        raise BadInput(f"plan: {path} holds no runs of `reproduce depth`")
    found = best_depths(rows)
    for data, best in found.items() if not quiet else ():
        figures = f"loss {best.loss:.4f}, the next {best.lead:.4f} above"
        say(f"{data}: {best.depth} layers are best, {best.between:.1f} by a parabola; {figures}")
    return {data: asdict(best) for data, best in found.items()}
