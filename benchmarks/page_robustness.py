"""docs/results/robustness.md from the record beside it: no figure and no verdict there is typed by hand.

Run: python -m benchmarks.page_robustness
"""

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, stdev
from textwrap import fill
from typing import Any, NamedTuple

from benchmarks import ROOT
from benchmarks.page import Record, Row, _table
from kernelhead.records import read_json, write_text

RECORD = ROOT / "docs" / "results" / "robustness.json"
RIVALS = ("symmetric", "softmax")
WIDTH = 110
TRIED = "rpc"  # how the names of the rows on trial begin

HEAD = """# Robustness

Made by `python -m benchmarks.page_robustness` from the record that `kernelhead bench robustness` writes; what
is measured and how is in [the description](../robustness.md). Figures are means over seeds with the deviation
of a seed. **Bold** is the best row of a column where it leads every other by more than the larger deviation
of the two. With so few seeds that is no test of significance; a difference below it counts as none.
"""


class Figure(NamedTuple):
    """Mean and deviation over seeds; the deviation of a single one is not known."""

    mean: float
    deviation: float | None

    def leads(self, other: "Figure", *, least: bool) -> bool:
        """Whether this is better than another by more than the larger deviation of the two."""
        if self.deviation is None or other.deviation is None:
            return False
        gain = other.mean - self.mean if least else self.mean - other.mean
        return gain > max(self.deviation, other.deviation)


@dataclass(frozen=True)
class Table:
    """Columns of figures: what they are, how they are written, whether the least is the best."""

    title: str
    columns: Callable[[Row], dict[str, float | None]]
    scale: float = 1.0
    digits: int | None = None
    least: bool = False
    judged: bool = True


Figures = dict[str, dict[str, Figure]]  # by column, then by row


def robustness(record: Record) -> str:
    """The page: tables for every part, then where the pursuit helps and where it does not."""
    lines = [HEAD, *_made(record), ""]
    for (part, data), rows in _parts(record).items():
        if not rows:
            continue
        lines += [f"## {PARTS[part].title}: {data}", "", *_recipe(rows), ""]
        found = []
        for table in PARTS[part].tables:
            figures = gathered(table, rows)
            if figures:
                lines += [f"### {table.title}", "", *written(table, figures), ""]
                found += [(table, figures)] if table.judged else []
        lines += ["### Where the pursuit helps and where it does not", "", *verdicts(found), ""]
    failed = [row for row in record["rows"] if row["status"] != "ok"]
    if failed:
        lines += ["## Not measured, or not wholly", ""]
        lines += [f"- {row['data']}, {row['row']}, seed {row['seed']}: {row['status']}" for row in failed]
    return "\n".join(lines).rstrip() + "\n"


def gathered(table: Table, rows: list[Row]) -> Figures:
    """Means and deviations over the seeds of every row, where a row has them."""
    values: dict[str, dict[str, list[float]]] = {}
    for row in rows:
        for column, value in table.columns(row).items():
            if value is not None:
                values.setdefault(column, {}).setdefault(row["row"], []).append(value)
    return {
        column: {
            name: Figure(mean(each), stdev(each) if len(each) > 1 else None) for name, each in of.items()
        }
        for column, of in values.items()
    }


def written(table: Table, figures: Figures) -> list[str]:
    """The table in Markdown, a line for every row that has a figure."""
    names = list(dict.fromkeys(name for of in figures.values() for name in of))
    best = {column: leader(of, least=table.least) for column, of in figures.items() if table.judged}

    def cell(column: str, name: str) -> str:
        if name not in figures[column]:
            return "-"
        figure = figures[column][name]
        text = _number(figure.mean * table.scale, table.digits)
        if figure.deviation is not None and table.judged:
            text += f" ± {_number(figure.deviation * table.scale, table.digits)}"
        return f"**{text}**" if best.get(column) == name else text

    lines = [[name, *(cell(column, name) for column in figures)] for name in names]
    return _table(" | ".join(["attention", *figures]), lines)


def leader(figures: dict[str, Figure], *, least: bool) -> str | None:
    """The row that leads all others, or None where the difference is within the deviation.

    Example:
        >>> leader({"a": Figure(0.9, 0.01), "b": Figure(0.8, 0.02)}, least=False)
        'a'
        >>> leader({"a": Figure(0.9, 0.01), "b": Figure(0.8, 0.2)}, least=False)
    """
    for name, figure in figures.items():
        others = [other for each, other in figures.items() if each != name]
        if others and all(figure.leads(other, least=least) for other in others):
            return name
    return None


def verdicts(found: list[tuple[Table, Figures]]) -> list[str]:
    """Sentences by rule: every row on trial against each rival, and where none of them helps."""
    columns = [(table.least, column, of) for table, figures in found for column, of in figures.items()]
    names = dict.fromkeys(name for _, _, of in columns for name in of if name.startswith(TRIED))
    lines = []
    for name in names:
        for rival in RIVALS:
            kinds: dict[str, list[str]] = {"better": [], "worse": [], "neither": []}
            for least, column, of in columns:
                if _known(of, name, rival):
                    kinds[_kind(of[name], of[rival], least=least)].append(column)
            lines += _sentence(name, rival, kinds)
    if not lines:
        return ["Where a row has one seed only, nothing is said of it."]
    none = [
        column
        for least, column, of in columns
        if not any(
            _known(of, name, *RIVALS) and all(of[name].leads(of[rival], least=least) for rival in RIVALS)
            for name in names
        )
    ]
    helped = f"Some form of the pursuit beats both {' and '.join(RIVALS)} in {len(columns) - len(none)}"
    lines += ["", *fill(f"{helped} of {len(columns)} figures.", WIDTH).splitlines()]
    return lines + (fill(f"None does in: {'; '.join(none)}.", WIDTH).splitlines() if none else [])


def _known(of: dict[str, Figure], *names: str) -> bool:
    """Whether all rows have a figure with a deviation."""
    return all(name in of and of[name].deviation is not None for name in names)


def _sentence(name: str, rival: str, kinds: dict[str, list[str]]) -> list[str]:
    """Where one row is better and worse than another, if anything is known of it."""
    counted = sum(map(len, kinds.values()))
    if not counted:
        return []
    parts = [f"{kind} in {'; '.join(kinds[kind])}" for kind in ("better", "worse") if kinds[kind]]
    parts += [f"no difference in {len(kinds['neither'])}"] if kinds["neither"] else []
    said = f"`{name}` against `{rival}` does not help in {counted - len(kinds['better'])} of {counted}"
    return fill(f"- {said}: {', '.join(parts)}.", WIDTH, subsequent_indent="  ").splitlines()


def _kind(ours: Figure, theirs: Figure, *, least: bool) -> str:
    if ours.leads(theirs, least=least):
        return "better"
    return "worse" if theirs.leads(ours, least=least) else "neither"


def _number(value: float, digits: int | None) -> str:
    """With so many digits, or with as many as its size deserves."""
    if digits is None:
        digits = 0 if value >= 1000 else 1 if value >= 10 else 2
    return f"{value:,.{digits}f}"


def _attacks(row: Row) -> dict[str, float | None]:
    clean = {"clean, all": row.get("clean"), "clean, those attacked": row.get("chosen")}
    return clean | row.get("attacks", {})


def _corruptions(row: Row) -> dict[str, float | None]:
    levels = {name.replace("_", " "): mean(each) for name, each in row.get("corruptions", {}).items()}
    return levels | ({"mean of corruptions": mean(levels.values())} if levels else {})


def _inside(row: Row) -> dict[str, float | None]:
    dropped = {f"{share} of patches dropped": value for share, value in row.get("dropped", {}).items()}
    spoilt = {tuple(name.split(", ")): value for name, value in row.get("contaminated", {}).items()}
    return dropped | {f"{share} of keys spoilt in {where}": value for (share, where), value in spoilt.items()}


def _calibration(row: Row) -> dict[str, float | None]:
    names = {
        "likelihood": "negative log-likelihood",
        "brier": "Brier score",
        "calibration": "calibration error",
        "calibration_corrupted": "calibration error on corrupted images",
    }
    return {title: row.get(name) for name, title in names.items()}


def _cost(row: Row) -> dict[str, float | None]:
    names = {
        "parameters": "parameters",
        "validation": "validation",
        "seconds": "training, s",
        "steps_a_second": "steps a second",
        "peak_gib": "peak, GiB",
        "evaluation_seconds": "evaluation, s",
    }
    # Of a run beside others the times say nothing.
    clock = {"seconds", "steps_a_second", "evaluation_seconds"} if "beside" in row else set()
    return {title: None if name in clock else row.get(name) for name, title in names.items()}


def _perplexity(row: Row) -> dict[str, float | None]:
    swapped = {f"{name} swapped": value for name, value in row.get("swapped", {}).items()}
    return {"clean text": row.get("clean")} | swapped


def _growth(row: Row) -> dict[str, float | None]:
    clean = row.get("unswapped", {})
    grown = {}
    for name, value in row.get("swapped", {}).items():
        before = clean.get(name.split()[0])
        grown[f"growth at {name}"] = value / before if value and before else None
    return grown


class Part(NamedTuple):
    """A part of the comparison: its heading and its tables."""

    title: str
    tables: tuple[Table, ...]


PARTS = {
    "images": Part(
        "Images",
        (
            Table("Accuracy under attack, %", _attacks, 100, 1),
            Table("Accuracy on corrupted images, mean of five severities, %", _corruptions, 100, 1),
            Table("Accuracy with patches dropped or keys spoilt, %", _inside, 100, 1),
            Table("Calibration, lower is better", _calibration, digits=3, least=True),
            Table("Cost", _cost, judged=False),
        ),
    ),
    "words": Part(
        "Words",
        (
            Table("Perplexity, lower is better", _perplexity, digits=1, least=True),
            Table("Growth of perplexity by swapped words, lower is better", _growth, digits=3, least=True),
            Table("Cost", _cost, judged=False),
        ),
    ),
}


def _parts(record: Record) -> dict[tuple[str, str], list[Row]]:
    """Rows that have a figure, by part and set, in the order of the first seed."""
    parts: dict[tuple[str, str], list[Row]] = {}
    for row in record["rows"]:
        parts.setdefault((row["part"], row["data"]), []).extend([row] if "clean" in row else [])
    return parts


def _recipe(rows: list[Row]) -> list[str]:
    """Sizes and training of all rows of a part, and how many seeds there are."""
    sizes, course = rows[0]["recipe"], {**rows[0]["course"]}
    course["seeds"] = sorted({row["seed"] for row in rows})
    course.pop("seed")
    said, trained = (
        ", ".join(f"{name.replace('_', ' ')} {_plain(value)}" for name, value in each.items())
        for each in (sizes, course)
    )
    return fill(f"All rows: {said}. Trained with {trained}; last weights.", WIDTH).splitlines()


def _plain(value: Any) -> str:
    return " ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def _made(record: Record) -> list[str]:
    versions = record["versions"]
    kinds = [f"{name} {versions[name]}" for name in ("torch", "triton") if name in versions]
    tests = "after green tests" if record["gated"] else "**ungated**: no tests ran before these figures"
    where = [record["date"], record["machine"]["device"], *kinds, f"commit {record['commit'] or 'unknown'}"]
    lines = fill(f"{', '.join(where)}, {record['seconds']:.0f} s, {tests}.", WIDTH).splitlines()
    return lines + ["**Tiny**: a trial of the code on few cases; its figures mean nothing."] * record["tiny"]


def write(path: Path) -> Path:
    """Read a record and write the page beside it."""
    page = path.with_suffix(".md")
    write_text(page, robustness(read_json(path)))
    return page


def main() -> None:
    """Read, write, say what was written."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("record", nargs="?", type=Path, default=RECORD, help="the JSON")
    print(write(parser.parse_args().record))


if __name__ == "__main__":
    main()
