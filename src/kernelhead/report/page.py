"""Records to one self-contained page: runs side by side, their curves, spectra and origins."""

import json
import math
from base64 import b64encode
from collections.abc import Callable, Mapping, Sequence
from hashlib import sha256
from importlib.resources import files
from pathlib import Path
from typing import Any

from kernelhead import records
from kernelhead.errors import missing_extra
from kernelhead.report.charts import GLYPHS, PALETTE, alignment_lines, chart, spectrum_lines
from kernelhead.report.flows import flow_chart, flow_rows
from kernelhead.report.graphs import called, pictures
from kernelhead.report.learning import learning_charts, objective_charts
from kernelhead.report.maps import drawable
from kernelhead.report.robustness import Bar, robustness_bars
from kernelhead.report.runs import KPCA, RANKS, Run, labels_of, read_runs
from kernelhead.report.transports import FIGURES, transport_charts, transport_rows


def summary(runs: Sequence[Path]) -> list[dict[str, Any]]:
    """One row per run folder: its accuracy, size, time and memory, None where not known.

    A folder of records of a model that was not trained here has none of them and counts as finished. An
    unfinished run has no test accuracy; its validation accuracy is the best so far and its
    seconds per epoch the mean so far. `test_error` is the binomial standard error over test cases.

    Args:
        runs: run folders; one that is given twice counts once.

    Raises:
        BadInput: no run is given, a folder is not a run, or a record is broken.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> with TemporaryDirectory() as folder:
        ...     records.write_json(Path(folder, records.CONFIG), {"name": "tiny", "epochs": 3})
        ...     row = summary([Path(folder)])[0]
        >>> row["run"], row["finished"], row["epochs"], row["planned"], row["test_accuracy"]
        ('tiny', False, 0, 3, None)
    """
    read, _ = read_runs(runs)
    return [_row(run, label) for run, label in zip(read, labels_of(read), strict=True)]


def write_report(runs: Sequence[Path], out: Path, *, title: str = "kernelhead report") -> Path:
    """Write one HTML page about all runs, whole or not at all, that loads nothing from outside.

    Args:
        runs: run folders, in the order of the page.
        out: the HTML file; its folder is made.
        title: the heading of the page.

    Returns:
        `out`.

    Raises:
        BadInput: no run is given, a folder is not a run, or a record is broken.
        MissingExtra: jinja2 or matplotlib is not installed.
        CheckpointError: `out` cannot be written.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> with TemporaryDirectory() as folder:
        ...     records.write_json(Path(folder, records.CONFIG), {"name": "tiny", "epochs": 3})
        ...     page = write_report([Path(folder)], Path(folder, records.REPORT)).read_text("utf-8")
        >>> page[:15], "unfinished" in page
        ('<!doctype html>', True)
    """
    try:
        from jinja2 import Environment, StrictUndefined
        from markupsafe import Markup
    except ImportError as error:
        raise missing_extra("write_report", "jinja2", "cli") from error

    read, tried = read_runs(runs)
    labels = labels_of(read)
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters.update(number=_number, percent=_percent, whole=_whole, raw=_raw)
    template, style, script = (_part(f"page.{kind}") for kind in ("html.j2", "css", "js"))
    slots = [*enumerate(read)]
    maps = drawable([run.maps for run in read])
    page = environment.from_string(template).render(
        title=title,
        palette=PALETTE,
        style=Markup(style),
        script=Markup(script),
        # The one script of the page, by its bytes: no other runs, whatever a record holds.
        script_hash=f"sha256-{b64encode(sha256(script.encode()).digest()).decode()}",
        runs=[
            {"label": label, "colour": slot % len(PALETTE), "glyph": GLYPHS[slot % len(GLYPHS)]}
            for slot, label in enumerate(labels)
        ],
        rows=[_row(run, label) for run, label in zip(read, labels, strict=True)],
        shown={
            "learning": [slot for slot, run in slots if run.metrics],
            "objective": [slot for slot, run in slots if any("penalty" in row for row in run.metrics)],
            "spectra": [slot for slot, run in slots if run.spectrum],
            "kpca": [slot for slot, run in slots if run.kpca],
            "flow": [slot for slot, run in slots if run.flow],
            "transport": [slot for slot, run in slots if run.transport],
        },
        learning=_marked(Markup, learning_charts([run.metrics for run in read])),
        objective=_marked(Markup, objective_charts([run.metrics for run in read])),
        layers=[(path, [Markup(svg) for svg in pair]) for path, pair in _spectra(read)],
        spectrum_heads=_most_heads([run.spectrum.get("layers", []) for run in read]),
        ranks=_ranks(read),
        rank_names=list(RANKS.values()),
        maps=[(slot, maps[slot], _drawn_from(run.maps)) for slot, run in slots if maps[slot]],
        map_layers=list(dict.fromkeys(layer["path"] for layers in maps for layer in layers)),
        map_heads=_most_heads(maps),
        alignments=[(path, svg and Markup(svg), rows) for path, svg, rows in _alignments(read)],
        kpca_names=list(KPCA.values()),
        robustness=[part for source, record in tried for part in _tried(source, record)],
        graphs=[
            (
                slot,
                run.graph["path"],
                [(head, Markup(svg), said) for head, svg, said in pictures(run.graph, slot)],
            )
            for slot, run in slots
            if run.graph
        ],
        graph_heads=list(dict.fromkeys(called(head) for run in read for head in run.graph.get("heads", []))),
        flow_chart=Markup(flow_chart({slot: run.flow for slot, run in slots if run.flow})),
        flows=[(slot, flow_rows(run.flow)) for slot, run in slots if run.flow],
        transport_names=list(FIGURES.values()),
        transport_charts=_marked(
            Markup, transport_charts({slot: run.transport for slot, run in slots if run.transport})
        ),
        transports=[
            (slot, run.transport["layer"], transport_rows(run.transport))
            for slot, run in slots
            if run.transport
        ],
        config=_compare([run.config for run in read], gaps_differ=[not run.only_records for run in read]),
        origin=_compare([_origin(run) for run in read], gaps_differ=[False] * len(read)),
    )
    records.write_text(out, page)
    return out


def _part(name: str) -> str:
    return files("kernelhead.report").joinpath(name).read_text(encoding="utf-8")


def _marked(markup: Callable[[str], Any], drawn: Sequence[tuple[str, str]]) -> list[tuple[Any, str]]:
    """Pictures that go into the page as they are, with captions that do not."""
    return [(markup(svg), caption) for svg, caption in drawn]


def _most_heads(runs: Sequence[Sequence[Mapping[str, Any]]]) -> int:
    return max((len(layer["heads"]) for layers in runs for layer in layers), default=0)


def _drawn_from(record: Mapping[str, Any]) -> str:
    case, data = record.get("case"), record.get("data")
    return "" if case is None or data is None else f"Case {case} of {data}."


def _tried(source: str, record: Mapping[str, Any]) -> list[tuple[str, str, list[tuple[str, list[Bar]]]]]:
    """Where bars come from, what was tried, and the bars of each trial."""
    groups: dict[str, list[tuple[str, list[Bar]]]] = {}
    for group, trial, bars in robustness_bars(record):
        groups.setdefault(group, []).append((trial, bars))
    machine = record.get("machine")
    device = machine.get("device") if isinstance(machine, dict) else None
    facts = [str(each) for each in (source, record.get("date"), device) if each]
    if record.get("tiny"):
        facts.append("a trial of the code on few cases, whose figures mean nothing")
    return [(f"{', '.join(facts)}.", group, trials) for group, trials in groups.items()]


def _row(run: Run, label: str) -> dict[str, Any]:
    seconds = [line["seconds"] for line in run.metrics if line.get("seconds") is not None]
    valid = [line for line in run.metrics if line.get("valid_accuracy") is not None]
    best = max(valid, key=lambda line: float(line["valid_accuracy"]), default={})
    so_far = {
        "valid_accuracy": best.get("valid_accuracy"),
        "best_epoch": best.get("epoch"),
        "seconds_per_epoch": sum(seconds) / len(seconds) if seconds else None,
    }
    known = run.config | so_far | run.result
    accuracy, cases = run.result.get("test_accuracy"), run.result.get("test_cases") or 0
    spread = None
    if accuracy is not None and cases > 0:
        spread = math.sqrt(max(0.0, accuracy * (1 - accuracy)) / cases)
    return {
        "run": label,
        "data": known.get("data"),
        "attention": run.config.get("attention"),
        "finished": bool(run.result) or run.only_records,
        "epochs": run.metrics[-1]["epoch"] if run.metrics else 0,
        "planned": run.config.get("epochs"),
        "test_accuracy": accuracy,
        "test_error": spread,
        **{key: known.get(key) for key in ("valid_accuracy", "best_epoch", "parameters")},
        **{key: known.get(key) for key in ("seconds_per_epoch", "peak_memory_mib", "seed")},
    }


def _layer_paths(runs: Sequence[Run]) -> list[str]:
    return list(dict.fromkeys(layer["path"] for run in runs for layer in run.spectrum.get("layers", [])))


def _spectra(runs: Sequence[Run]) -> list[tuple[str, tuple[str, str]]]:
    """For every layer its path and two charts: cumulated share and decay."""
    drawn = []
    for position, path in enumerate(_layer_paths(runs)):
        layers = [(slot, run.layer(path)) for slot, run in enumerate(runs)]
        lines = [spectrum_lines(slot, layer["heads"]) for slot, layer in layers if layer]
        pairs = [pair for pair in lines if pair]
        if pairs:
            share = chart(
                [pair[0] for pair in pairs],
                name=f"share-{position}",
                label=f"Line chart: cumulated singular values of {path}; runs: {len(pairs)}",
                axes=("components", "share of the sum, %"),
                log="x",
            )
            decay = chart(
                [pair[1] for pair in pairs],
                name=f"decay-{position}",
                label=f"Line chart: decay of the singular values of {path}; runs: {len(pairs)}",
                axes=("component", "ratio to the largest"),
                log="xy",
            )
            drawn.append((path, (share, decay)))
    return drawn


def _ranks(runs: Sequence[Run]) -> list[tuple[str, list[dict[str, Any]]]]:
    """For every layer its path and, for each run that has it, its ranks over heads in words."""
    return [
        (
            path,
            [
                {
                    "slot": slot,
                    "kind": layer.get("kind"),
                    "heads": len(layer["heads"]),
                    "components": max(map(len, layer["heads"]), default=0),
                    "ranks": [_spread(layer[key]) for key in RANKS],
                }
                for slot, run in enumerate(runs)
                if (layer := run.layer(path))
            ],
        )
        for path in _layer_paths(runs)
    ]


def _alignments(runs: Sequence[Run]) -> list[tuple[str, str, list[dict[str, Any]]]]:
    """For every layer its path, a chart of what is explained, if any, and a row for each run that has it."""
    drawn = []
    paths = dict.fromkeys(layer["path"] for run in runs for layer in run.kpca.get("layers", []))
    for position, path in enumerate(paths):
        layers = [(slot, layer) for slot, run in enumerate(runs) if (layer := run.aligned(path))]
        pairs = [
            alignment_lines(slot, _figure(layer["heads"]), [*map(_figure, layer["baselines"].values())])
            for slot, layer in layers
        ]
        lines = [line for pair in pairs if pair for line in pair]
        label = f"Line chart: what the values of {path} explain, by head; runs: {len(lines) // 2}"
        svg = chart(lines, name=f"kpca-{position}", label=label, axes=("head", "explained")) if lines else ""
        drawn.append((path, svg, [{"slot": slot, **_aligned_row(layer)} for slot, layer in layers]))
    return drawn


def _figure(heads: Sequence[Mapping[str, Any]], key: str = "explained") -> list[float | None]:
    return [head[key] for head in heads]


def _aligned_row(layer: Mapping[str, Any]) -> dict[str, Any]:
    """The verdict in words, and each figure over heads beside its baselines."""
    columns = [layer["heads"], *layer["baselines"].values()]
    means = {key: [_known_mean(_figure(heads, key)) for heads in columns] for key in KPCA}
    return {
        "verdict": layer["verdict"],
        "figures": [
            (
                own,
                _number(own),
                [f"{name} {_number(each)}" for name, each in zip(layer["baselines"], rest, strict=True)],
            )
            for own, *rest in means.values()
        ],
    }


def _known_mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def _origin(run: Run) -> dict[str, Any]:
    """Where the numbers come from: seed, date, cases, machine and versions, flat."""
    known = {"seed": run.config.get("seed")} | run.result
    plain = ("seed", "date", "classes", "train_cases", "valid_cases", "test_cases")
    flat = {key.replace("_", " "): known[key] for key in plain if known.get(key) is not None}
    flat |= {f"spectrum {key}": run.spectrum[key] for key in ("cases", "length") if key in run.spectrum}
    flat |= {f"maps {key}": run.maps[key] for key in ("data", "case") if key in run.maps}
    flat |= {f"kernel PCA {key}": run.kpca[key] for key in ("cases", "length", "seed") if key in run.kpca}
    flat |= {f"flow {key}": run.flow[key] for key in ("cases", "length") if key in run.flow}
    flat |= {f"transport {key}": run.transport[key] for key in ("points", "looks") if key in run.transport}
    for group in ("machine", "versions"):
        flat |= {f"{group}: {key}": value for key, value in run.result.get(group, {}).items()}
    return flat


def _compare(
    columns: Sequence[Mapping[str, Any]], *, gaps_differ: Sequence[bool]
) -> list[tuple[str, list[str], bool]]:
    """Rows of a side-by-side table: a key, its value in every column, and whether they differ."""
    keys = dict.fromkeys(key for column in columns for key in column)
    rows = []
    for key in keys:
        words = [_word(column.get(key)) for column in columns]
        told = {word for word, gap in zip(words, gaps_differ, strict=True) if gap or word != "–"}
        rows.append((key, words, len(told) > 1))
    return rows


def _word(value: object) -> str:
    if value is None:
        return "–"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _number(value: float | None) -> str:
    """Three figures, or all digits of a larger number, in groups."""
    if value is None or not math.isfinite(value):
        return "–"
    return f"{value:.3g}" if abs(value) < 999.5 else _whole(round(value))


def _whole(value: int | None) -> str:
    return "–" if value is None else f"{value:,}".replace(",", "\u202f")


def _percent(value: float | None) -> str:
    return "–" if value is None or not math.isfinite(value) else f"{100 * value:.1f}"


def _raw(value: float | None) -> str:
    """As a table is sorted by it: all digits, nothing where it is not known."""
    return "" if value is None or not math.isfinite(value) else repr(value)


def _spread(values: Sequence[float]) -> tuple[float | None, str, str]:
    """The mean, also in words, and the lowest to the highest where they differ."""
    if not values:
        return None, "–", ""
    low, high, mean = min(values), max(values), sum(values) / len(values)
    return mean, _number(mean), "" if low == high else f"{_number(low)}–{_number(high)}"
