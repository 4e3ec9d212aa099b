"""A ledger as a page of Markdown: means over seeds beside published figures, and what follows by rule."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from math import sqrt
from pathlib import Path
from statistics import fmean, stdev, variance

from kernelhead.errors import MissingExtra, missing_extra
from kernelhead.records import write_atomically, write_text
from kernelhead.report.panels import LOOK
from kernelhead.training.ledger import DONE, FAILED, Row

NONE = "-"
HELD = (0.5, 0.9, 0.99)  # shares of a sum that components are counted up to
POINTS = 100  # of a line in a figure, at most


@dataclass(frozen=True)
class Goal:
    """That a variant is at least as good as another one, or as a published figure, on average.

    Args:
        variant: whose figures are judged.
        against: the variant they are held against.
        published: against what was published for it, else against what was measured.
    """

    variant: str
    against: str
    published: bool = False


@dataclass(frozen=True)
class Claim:
    """That a variant is better than another one, judged on every data set by itself.

    It holds where the means differ that way by more than two standard errors of their difference, does
    not hold where they differ the other way by as much, and cannot be told otherwise.

    Args:
        sentence: what is claimed.
        variant: whose figures should be better.
        against: the variant they are held against.
    """

    sentence: str
    variant: str
    against: str


@dataclass(frozen=True)
class Shares:
    """A curve of some variants, held against each other: shares of a sum, the largest first.

    It is shown cumulated, by a table and a figure: what rises faster has fewer components that count.

    Args:
        curve: its name in the rows; a curve may stop before its shares sum to 1.
        title: heading of its section.
        about: what it is, in a paragraph.
        variants: titles by variant, in order; others are left out.
        protocol: whose rows are taken.
    """

    curve: str
    title: str
    about: str
    variants: Mapping[str, str]
    protocol: str = "clean"


@dataclass(frozen=True)
class Page:
    """What a field's page says beside its rows.

    Args:
        title: its first line.
        about: what was done, in a paragraph.
        figures: the figure to show, by protocol.
        labels: what is said of each protocol.
        variants: titles of the columns by variant, in order.
        published: figures by data set and variant, on the scale of the table.
        published_by: how those were chosen, in the heading of their columns.
        doubtful: data sets whose published figures are shown but not held against ours, with a reason.
        goals: what is judged.
        claims: what is judged with an eye on the spread; where there are any, variants are rows.
        beside: titles of further figures, shown as they are beside the costs.
        shares: curves to show, each in a section of its own.
        scale: a figure is multiplied by it.
        unit: of a figure after that.
        higher: whether more is better.
    """

    title: str
    about: str
    figures: Mapping[str, str]
    labels: Mapping[str, str]
    variants: Mapping[str, str]
    published: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    published_by: str = ""
    doubtful: Mapping[str, str] = field(default_factory=dict)
    goals: tuple[Goal, ...] = ()
    claims: tuple[Claim, ...] = ()
    beside: Mapping[str, str] = field(default_factory=dict)
    shares: tuple[Shares, ...] = ()
    scale: float = 1.0
    unit: str = ""
    higher: bool = True


Cells = Mapping[tuple[str, str], list[float]]  # figures over seeds, by data set and variant
Sums = Mapping[tuple[str, str], list[list[float]]]  # cumulated curves over seeds, likewise


def write_page(page: Page, rows: Sequence[Row], path: Path) -> list[Path]:
    """Write the page of a ledger, and beside it STEM_CURVE.svg for each curve that it shows.

    Without matplotlib the page is written without figures, and says so.

    Returns:
        The files that were written.

    Raises:
        CheckpointError: one cannot be written.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> page = Page("Tiny", "A run.", {}, {}, {}, shares=(Shares("s", "Shares", "Of all.", {"a": "A"}),))
        >>> row = {"data": "set", "variant": "a", "protocol": "clean", "status": "done"}
        >>> with TemporaryDirectory() as folder:
        ...     made = write_page(page, [{**row, "curves": {"s": [0.6, 0.4]}}], Path(folder) / "tiny.md")
        >>> [path.name for path in made]
        ['tiny.md', 'tiny_s.svg']
    """
    images, written = {}, [path]
    for shares in page.shares:
        image = path.with_name(f"{path.stem}_{shares.curve}.svg")
        try:
            if draw(shares, rows, image):
                images[shares.curve] = f"![{shares.title}, cumulated]({image.name})"
                written.append(image)
        except MissingExtra as error:
            images[shares.curve] = f"The figure is not drawn. {error}"
    write_text(path, markdown(page, rows, images=images))
    return written


def draw(shares: Shares, rows: Sequence[Row], path: Path) -> bool:
    """Draw cumulated curves as SVG, a panel a data set; the same bytes for the same numbers.

    A line is the mean over seeds, with a band of their deviation where there are two or more.

    Returns:
        Whether there was a curve to draw.

    Raises:
        MissingExtra: matplotlib is not installed.
        CheckpointError: the file cannot be written.
    """
    sums = _cumulated(shares, rows)
    if not sums:
        return False
    try:
        from matplotlib import style
        from matplotlib.figure import Figure
    except ImportError:
        raise missing_extra("draw", "matplotlib", "cli") from None
    sets = sorted({data for data, _ in sums})
    with style.context(["default", LOOK]):
        figure = Figure(figsize=(4.5 * len(sets), 4), layout="constrained")
        handles = {}
        for data, axes in zip(sets, figure.subplots(1, len(sets), squeeze=False)[0], strict=True):
            for place, (name, title) in enumerate(shares.variants.items()):
                if (data, name) in sums:
                    x, mean, low, high = _banded(sums[data, name])
                    axes.fill_between(x, low, high, color=f"C{place}", alpha=0.2, linewidth=0)
                    (handles[title],) = axes.plot(x, mean, color=f"C{place}")
            axes.set(title=data, xscale="log", ylim=(0, 1.02), xlabel="component", ylabel="cumulated share")
            axes.minorticks_off()
            axes.xaxis.set_major_formatter("{x:g}")
        shown = [title for title in shares.variants.values() if title in handles]
        figure.legend(
            [handles[title] for title in shown], shown, loc="outside lower center", ncols=2 * len(sets)
        )
        write_atomically(path, lambda file: figure.savefig(file, format="svg", metadata={"Date": None}))
    return True


def markdown(page: Page, rows: Sequence[Row], *, images: Mapping[str, str] | None = None) -> str:
    """The page of a ledger.

    Args:
        page: what it says.
        rows: of the ledger.
        images: a line to show by curve, such as a link to its figure.

    Example:
        >>> page = Page("Tiny", "Two runs.", {"clean": "score"}, {"clean": "Clean."}, {"a": "A"})
        >>> row = {"data": "set", "variant": "a", "protocol": "clean", "status": "done"}
        >>> made = markdown(page, [{**row, "figures": {"score": each}} for each in (1.0, 2.0)])
        >>> print(made.splitlines()[10])
        | set | 1.5 ± 0.7 (2) |
    """
    parts = [f"# {page.title}", page.about]
    for protocol in page.figures:
        cells = _cells(page, rows, protocol)
        if cells:
            made = _tall(page, cells) if page.claims else _table(page, cells)
            parts += [f"## {protocol}", page.labels[protocol], "\n".join(made)]
            parts += [
                f"† {data}: {reason}" for data, reason in page.doubtful.items() if _shown(page, cells, data)
            ]
            said = [f"- {sentence}" for goal in page.goals if (sentence := _judged(page, cells, goal))]
            parts += ["\n".join(said)] if said else []
            parts += ["\n".join(_claimed(page, cells))] if page.claims else []
            parts.append("\n".join(_costs(page, rows, protocol)))
    for shares in page.shares:
        sums = _cumulated(shares, rows)
        if sums:
            line = (images or {}).get(shares.curve)
            parts += [f"## {shares.title}", shares.about, *([line] if line else [])]
            parts.append("\n".join(_held(shares, sums)))
    failed = [
        f"- {row['data']}, {row['variant']}, {row['protocol']}, seed {row['seed']}: {row['error']}"
        for row in rows
        if row["status"] == FAILED
    ]
    parts += ["## Failed", "\n".join(failed)] if failed else []
    return "\n\n".join(parts) + "\n"


def _cells(page: Page, rows: Sequence[Row], protocol: str) -> dict[tuple[str, str], list[float]]:
    cells: dict[tuple[str, str], list[float]] = {}
    for row in _done(rows, protocol):
        figure = row["figures"].get(page.figures[protocol])
        if figure is not None:
            cells.setdefault((row["data"], row["variant"]), []).append(page.scale * figure)
    return cells


def _done(rows: Sequence[Row], protocol: str) -> list[Row]:
    return [row for row in rows if row["status"] == DONE and row["protocol"] == protocol]


def _table(page: Page, cells: Cells) -> Iterator[str]:
    sets = [*dict.fromkeys(data for data, _ in cells)]
    ours = _variants(page, cells)
    theirs = [name for name in page.variants if any(name in page.published.get(data, {}) for data in sets)]
    headings = ["data set", *(page.variants.get(name, name) for name in ours)]
    yield _line(*headings, *(f"*{page.variants[name]}, published: {page.published_by}*" for name in theirs))
    yield _line("---", *["---:"] * (len(ours) + len(theirs)))
    for data in sets:
        mark = "†" if data in page.doubtful else ""
        published = [page.published.get(data, {}).get(name) for name in theirs]
        yield _line(
            data,
            *(_spread(cells.get((data, name), [])) for name in ours),
            *(NONE if each is None else f"*{each:.1f}{mark}*" for each in published),
        )
    whole = [
        data
        for data in sets
        if all((data, name) in cells for name in ours) and {*theirs} <= {*page.published.get(data, {})}
    ]
    if len(whole) > 1:
        means = [fmean(fmean(cells[data, name]) for data in whole) for name in ours]
        quoted = [fmean(page.published[data][name] for data in whole) for name in theirs]
        yield _line(
            f"average of the {len(whole)} sets that every column has",
            *(f"{mean:.1f}" for mean in means),
            *(f"*{mean:.1f}*" for mean in quoted),
        )


def _tall(page: Page, cells: Cells) -> Iterator[str]:
    """A row for every variant."""
    sets = [*dict.fromkeys(data for data, _ in cells)]
    yield _line("variant", *sets)
    yield _line("---", *["---:"] * len(sets))
    for name in _variants(page, cells):
        yield _line(page.variants.get(name, name), *(_spread(cells.get((data, name), [])) for data in sets))


def _claimed(page: Page, cells: Cells) -> Iterator[str]:
    """A row for every claim and data set that has both sides."""
    yield _line("claim", "data set", "difference", "two standard errors", "verdict")
    yield _line("---", "---", "---:", "---:", "---")
    for claim in page.claims:
        for data in dict.fromkeys(data for data, _ in cells):
            ours, other = cells.get((data, claim.variant)), cells.get((data, claim.against))
            if ours and other:
                yield _line(claim.sentence, data, *_verdict(page, ours, other))


def _verdict(page: Page, ours: Sequence[float], other: Sequence[float]) -> tuple[str, str, str]:
    lead = (1 if page.higher else -1) * (fmean(ours) - fmean(other))
    if min(len(ours), len(other)) < 2:
        return f"{lead:+.1f}", NONE, "cannot be told: one seed"
    bound = 2 * sqrt(variance(ours) / len(ours) + variance(other) / len(other))
    verdict = "holds" if lead > bound else "does not hold" if lead < -bound else "cannot be told"
    return f"{lead:+.1f}", f"{bound:.1f}", verdict


def _costs(page: Page, rows: Sequence[Row], protocol: str) -> Iterator[str]:
    """Means over the rows of a cell that ran in one place, alone or beside as many others."""
    heads = "data set", "variant", "parameters", "s", "s an epoch", "peak MiB"
    yield _line(*heads, *page.beside.values(), "device")
    yield _line("---", "---", *["---:"] * (4 + len(page.beside)), "---")
    groups: dict[tuple[str, str, str], list[Row]] = {}
    for row in sorted(_done(rows, protocol), key=lambda row: (row["data"], row["variant"], _where(row))):
        groups.setdefault((row["data"], row["variant"], _where(row)), []).append(row)
    for (data, name, where), group in groups.items():
        yield _line(
            data,
            page.variants.get(name, name),
            *(
                _mean(group, figure, form)
                for figure, form in (
                    ("parameters", ",.0f"),
                    ("seconds", ",.1f"),
                    ("seconds_per_epoch", ".3f"),
                    ("peak_memory_mib", ",.0f"),
                )
            ),
            *(_mean([row["figures"] for row in group], figure) for figure in page.beside),
            where,
        )


def _where(row: Row) -> str:
    """The device of a row, and how many shared it."""
    if not row.get("machine"):
        return NONE
    shared = {"together": "in one process", "workers": "side by side"}
    beside = [f", {row[name]} {words}" for name, words in shared.items() if row.get(name, 1) > 1]
    return str(row["machine"]["device"]) + "".join(beside)


def _cumulated(shares: Shares, rows: Sequence[Row]) -> dict[tuple[str, str], list[list[float]]]:
    sums: dict[tuple[str, str], list[list[float]]] = {}
    for row in _done(rows, shares.protocol):
        curve = row.get("curves", {}).get(shares.curve)
        if curve and row["variant"] in shares.variants:
            sums.setdefault((row["data"], row["variant"]), []).append([*accumulate(curve)])
    return sums


def _held(shares: Shares, sums: Sums) -> Iterator[str]:
    """A row for every data set and variant: what the first component holds, and how many hold a share."""
    yield _line("data set", "variant", "held by the first, %", *(f"hold {share:.0%}" for share in HELD))
    yield _line("---", "---", *["---:"] * (1 + len(HELD)))
    for data in sorted({data for data, _ in sums}):
        for name, title in shares.variants.items():
            if curves := sums.get((data, name)):
                first = _spread([100 * curve[0] for curve in curves])
                yield _line(data, title, first, *(_components(curves, share) for share in HELD))


def _components(curves: Sequence[Sequence[float]], share: float) -> str:
    """How many hold a share of the sum; where a curve stops before, that they are more."""
    share -= 1e-9  # sums are rounded
    short = [len(curve) for curve in curves if curve[-1] < share]
    if short:
        return f"more than {max(short)} in {len(short)} of {len(curves)}"
    return _spread([1.0 + sum(each < share for each in curve) for curve in curves])


def _banded(curves: Sequence[Sequence[float]]) -> tuple[list[int], list[float], list[float], list[float]]:
    """Where, mean, and mean less and more the deviation, at places that are even on a log axis."""
    count = min(map(len, curves))
    x = sorted({round(count ** (step / (POINTS - 1))) for step in range(POINTS)})
    found = [[curve[place - 1] for curve in curves] for place in x]
    mean = [fmean(each) for each in found]
    spread = [stdev(each) if len(each) > 1 else 0.0 for each in found]
    low, high = ([m + sign * s for m, s in zip(mean, spread, strict=True)] for sign in (-1, 1))
    return x, mean, low, high


def _judged(page: Page, cells: Cells, goal: Goal) -> str:
    """One sentence: met where the mean over the sets is at least the other's; empty without a set."""
    pairs: dict[str, tuple[float, float]] = {}
    for (data, name), found in cells.items():
        if goal.published:
            other = None if data in page.doubtful else page.published.get(data, {}).get(goal.against)
        else:
            measured = cells.get((data, goal.against))
            other = fmean(measured) if measured else None
        if name == goal.variant and other is not None:
            pairs[data] = fmean(found), other
    if not pairs:
        return ""
    sign = 1 if page.higher else -1
    ahead = {data: sign * (ours - other) for data, (ours, other) in pairs.items()}
    ours, other = (fmean(pair[side] for pair in pairs.values()) for side in (0, 1))
    total = sign * (ours - other)
    behind = [f"{data} by {-lead:.1f}" for data, lead in ahead.items() if lead < 0]
    source = f"as published ({page.published_by})" if goal.published else "of this ledger"
    return (
        f"{page.variants[goal.variant]} against {page.variants[goal.against]} {source}: "
        f"{'met' if total >= 0 else f'missed by {-total:.1f}'}, {ours:.1f} to {other:.1f}{page.unit} "
        f"on average over {len(pairs)} set{'s' * (len(pairs) > 1)}; "
        f"at least as good on {len(pairs) - len(behind)}"
        + (f", behind on {', '.join(behind)}." if behind else ".")
    )


def _variants(page: Page, cells: Cells) -> list[str]:
    """The variants that have a figure, those of the page first."""
    found = {name for _, name in cells}
    return [*(name for name in page.variants if name in found), *sorted(found - {*page.variants})]


def _shown(page: Page, cells: Cells, data: str) -> bool:
    return data in page.published and any(name == data for name, _ in cells)


def _spread(found: Sequence[float]) -> str:
    """Mean and deviation over seeds, with how many there are."""
    if len(found) < 2:
        return f"{found[0]:.1f} (1)" if found else NONE
    return f"{fmean(found):.1f} ± {stdev(found):.1f} ({len(found)})"


def _mean(group: Sequence[Row], figure: str, form: str | None = None) -> str:
    """The mean of a figure; without a form, in three digits where it is small."""
    found = [row[figure] for row in group if row.get(figure) is not None]
    if not found:
        return NONE
    mean = fmean(found)
    return format(mean, form or (".3f" if abs(mean) < 10 else ",.1f"))


def _line(*words: str) -> str:
    return f"| {' | '.join(words)} |"
