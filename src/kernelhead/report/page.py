"""Records to one self-contained page: runs side by side, their curves, spectra and origins."""

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from kernelhead import records
from kernelhead.errors import BadInput, missing_extra
from kernelhead.report.charts import GLYPHS, PALETTE, Line, alignment_lines, chart, spectrum_lines
from kernelhead.report.flows import check_flow, flow_chart, flow_rows
from kernelhead.report.graphs import check_graph, pictures
from kernelhead.report.transports import FIGURES, check_transport, transport_charts, transport_rows

_RANKS = {
    "effective_rank": "Effective rank",
    "energy_rank_90": "90 % energy",
    "energy_rank_95": "95 % energy",
    "energy_rank_99": "99 % energy",
}
_KPCA = {
    "explained": "Explained",
    "cosine_mean": "Cosine",
    "span_residual": "Span residual",
    "bessel_rate": "Bessel broken",
}
_PER_EPOCH = ("epoch", "train_loss", "train_accuracy", "penalty", "valid_loss", "valid_accuracy", "seconds")
_AT_END = (
    *("test_accuracy", "valid_accuracy", "best_epoch", "test_cases"),
    *("parameters", "seconds_per_epoch", "peak_memory_mib"),
)


@dataclass(frozen=True)
class _Run:
    """What one folder holds; `result` is empty while the run is unfinished."""

    folder: Path
    config: dict[str, Any]
    metrics: list[dict[str, Any]]
    result: dict[str, Any]
    spectrum: dict[str, Any]
    kpca: dict[str, Any]
    flow: dict[str, Any]
    graph: dict[str, Any]
    transport: dict[str, Any]

    @property
    def name(self) -> str:
        return str(self.result.get("name") or self.config.get("name") or self.folder.name)

    def layer(self, path: str) -> dict[str, Any] | None:
        return next((layer for layer in self.spectrum.get("layers", []) if layer["path"] == path), None)

    def aligned(self, path: str) -> dict[str, Any] | None:
        return next((layer for layer in self.kpca.get("layers", []) if layer["path"] == path), None)


def summary(runs: Sequence[Path]) -> list[dict[str, Any]]:
    """One row per run folder: its accuracy, size, time and memory, None where not known.

    An unfinished run has no test accuracy; its validation accuracy is the best so far and its
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
    read = _read_all(runs)
    return [_row(run, label) for run, label in zip(read, _labels(read), strict=True)]


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
        ...     records.write_json(Path(folder, records.CONFIG), {"name": "tiny"})
        ...     page = write_report([Path(folder)], Path(folder, records.REPORT)).read_text("utf-8")
        >>> page[:15], "unfinished" in page
        ('<!doctype html>', True)
    """
    try:
        from jinja2 import Environment, StrictUndefined
        from markupsafe import Markup
    except ImportError as error:
        raise missing_extra("write_report", "jinja2", "cli") from error

    read = _read_all(runs)
    labels = _labels(read)
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters.update(number=_number, percent=_percent, whole=_whole)
    template = files("kernelhead.report").joinpath("page.html.j2").read_text(encoding="utf-8")
    page = environment.from_string(template).render(
        title=title,
        palette=PALETTE,
        runs=[
            {"label": label, "colour": slot % len(PALETTE), "glyph": GLYPHS[slot % len(GLYPHS)]}
            for slot, label in enumerate(labels)
        ],
        rows=[_row(run, label) for run, label in zip(read, labels, strict=True)],
        learning=[(Markup(svg), caption) for svg, caption in _learning(read)],
        layers=[(path, [Markup(svg) for svg in pair]) for path, pair in _spectra(read)],
        ranks=_ranks(read),
        rank_names=list(_RANKS.values()),
        alignments=[(path, svg and Markup(svg), rows) for path, svg, rows in _alignments(read)],
        kpca_names=list(_KPCA.values()),
        flow_chart=Markup(flow_chart({slot: run.flow for slot, run in enumerate(read) if run.flow})),
        flows=[(slot, flow_rows(run.flow)) for slot, run in enumerate(read) if run.flow],
        graphs=[
            (slot, run.graph["path"], [(Markup(svg), said) for svg, said in pictures(run.graph, slot)])
            for slot, run in enumerate(read)
            if run.graph
        ],
        transport_names=list(FIGURES.values()),
        transport_charts=[
            (Markup(svg), said)
            for svg, said in transport_charts(
                {slot: run.transport for slot, run in enumerate(read) if run.transport}
            )
        ],
        transports=[
            (slot, run.transport["layer"], transport_rows(run.transport))
            for slot, run in enumerate(read)
            if run.transport
        ],
        config=_compare([run.config for run in read], gaps_differ=True),
        origin=_compare([_origin(run) for run in read], gaps_differ=False),
    )
    records.write_text(out, page)
    return out


def _read_all(runs: Sequence[Path]) -> list[_Run]:
    if not runs:
        raise BadInput("report: no run folder is given, expected at least one")
    return [_read(folder) for folder in dict.fromkeys(Path(run).resolve() for run in runs)]


def _read(folder: Path) -> _Run:
    if not (folder / records.CONFIG).is_file():
        raise BadInput(f"{folder} is not a run folder: it has no {records.CONFIG}")
    names = records.RESULT, records.SPECTRUM, records.KPCA, records.FLOW, records.GRAPH, records.TRANSPORT
    result, spectrum, kpca, flow, graph, transport = (folder / name for name in names)
    run = _Run(
        folder,
        records.read_json(folder / records.CONFIG),
        records.read_lines(folder / records.METRICS),
        records.read_json(result) if result.exists() else {},
        records.read_json(spectrum) if spectrum.exists() else {},
        records.read_json(kpca) if kpca.exists() else {},
        records.read_json(flow) if flow.exists() else {},
        records.read_json(graph) if graph.exists() else {},
        records.read_json(transport) if transport.exists() else {},
    )
    for number, line in enumerate(run.metrics, start=1):
        _check_numbers(line, _PER_EPOCH, f"{folder / records.METRICS}, line {number}")
        if line.get("epoch") is None:
            raise BadInput(f"{folder / records.METRICS}, line {number} has no epoch")
    _check_numbers(run.result, _AT_END, str(result))
    for group in ("machine", "versions"):
        if not isinstance(run.result.get(group, {}), dict):
            raise BadInput(f"{result}: {group} is {run.result[group]!r}, expected a JSON object")
    _check_spectrum(run.spectrum, str(spectrum))
    _check_kpca(run.kpca, str(kpca))
    check_flow(run.flow, str(flow))
    check_graph(run.graph, str(graph))
    check_transport(run.transport, str(transport))
    return run


def _check_numbers(record: object, keys: Sequence[str], where: str) -> None:
    """Refuse a record whose measured values are neither numbers nor null."""
    if not isinstance(record, dict):
        raise BadInput(f"{where} holds a {type(record).__name__}, expected a JSON object")
    for key in keys:
        if not isinstance(record.get(key, 0), int | float | None):
            raise BadInput(f"{where}: {key} is {record[key]!r}, expected a number")


def _check_spectrum(record: dict[str, Any], where: str) -> None:
    try:
        for layer in record["layers"] if record else []:
            rows = [*layer["heads"], *(layer[key] for key in _RANKS)]
            if not isinstance(layer["path"], str) or not all(math.isfinite(v) for row in rows for v in row):
                raise TypeError
    except (KeyError, TypeError) as error:
        expected = f"a path, heads and {', '.join(_RANKS)}"
        raise BadInput(f"{where}: expected layers, each with {expected}, of finite numbers") from error


def _check_kpca(record: dict[str, Any], where: str) -> None:
    try:
        for layer in record["layers"] if record else []:
            columns = [layer["heads"], *layer["baselines"].values()]
            figures = [head[key] for heads in columns for head in heads for key in _KPCA]
            words = [layer[key] for key in ("path", "verdict")]
            if not all(isinstance(word, str) for word in words) or len({*map(len, columns)}) != 1:
                raise TypeError
            if not layer["baselines"] or not all(each is None or math.isfinite(each) for each in figures):
                raise TypeError
    except (KeyError, TypeError, AttributeError) as error:
        expected = f"a path, a verdict, and heads and baselines with {', '.join(_KPCA)}"
        raise BadInput(f"{where}: expected layers, each with {expected}") from error


def _labels(runs: Sequence[_Run]) -> list[str]:
    """The name of each run, and as much of its folder as tells equal names apart."""
    shared = Counter(run.name for run in runs)
    for depth in range(1, 1 + max(len(run.folder.parts) for run in runs)):
        labels = [
            run.name if shared[run.name] == 1 else f"{run.name} ({'/'.join(run.folder.parts[-depth:])})"
            for run in runs
        ]
        if len(set(labels)) == len(labels):
            break
    return labels


def _row(run: _Run, label: str) -> dict[str, Any]:
    seconds = [line["seconds"] for line in run.metrics if line.get("seconds") is not None]
    valid = [line for line in run.metrics if line.get("valid_accuracy") is not None]
    best = max(valid, key=lambda line: float(line["valid_accuracy"]), default={})
    so_far = {
        "valid_accuracy": best.get("valid_accuracy"),
        "best_epoch": best.get("epoch"),
        "seconds_per_epoch": sum(seconds) / len(seconds) if seconds else None,
    }
    known = run.config | so_far | run.result
    accuracy, cases = run.result.get("test_accuracy"), run.result.get("test_cases")
    spread = (
        math.sqrt(max(0.0, accuracy * (1 - accuracy)) / cases) if accuracy is not None and cases else None
    )
    return {
        "run": label,
        "data": known.get("data"),
        "attention": run.config.get("attention"),
        "finished": bool(run.result),
        "epochs": run.metrics[-1]["epoch"] if run.metrics else 0,
        "planned": run.config.get("epochs"),
        "test_accuracy": accuracy,
        "test_error": spread,
        **{key: known.get(key) for key in ("valid_accuracy", "best_epoch", "parameters")},
        **{key: known.get(key) for key in ("seconds_per_epoch", "peak_memory_mib", "seed")},
    }


def _learning(runs: Sequence[_Run]) -> list[tuple[str, str]]:
    """Charts over epochs with their captions, only those that have a number to show."""
    wanted = [
        ("loss", "loss", 1, "Loss. Solid: validation; dashed, hollow: training."),
        ("accuracy", "accuracy, %", 100, "Accuracy. Solid: validation; dashed, hollow: training."),
        ("penalty", "penalty", 1, "Penalty during training."),
    ]
    drawn = []
    for name, unit, scale, caption in wanted:
        keys = ["penalty"] if name == "penalty" else [f"train_{name}", f"valid_{name}"]
        lines = [
            Line(slot, x, [scale * value for value in y], dashed=key.startswith("train"))
            for slot, run in enumerate(runs)
            for key in keys
            for x, y in [_curve(run, key)]
            if not all(map(math.isnan, y))
        ]
        if lines:
            label = f"Line chart: {name} by epoch; runs: {len({line.slot for line in lines})}"
            drawn.append((chart(lines, name=name, label=label, axes=("epoch", unit)), caption))
    return drawn


def _curve(run: _Run, key: str) -> tuple[list[float], list[float]]:
    """Epochs and values of one metric; what is missing or not finite is a gap."""
    values = [math.nan if line.get(key) is None else float(line[key]) for line in run.metrics]
    return [line["epoch"] for line in run.metrics], [v if math.isfinite(v) else math.nan for v in values]


def _layer_paths(runs: Sequence[_Run]) -> list[str]:
    return list(dict.fromkeys(layer["path"] for run in runs for layer in run.spectrum.get("layers", [])))


def _spectra(runs: Sequence[_Run]) -> list[tuple[str, tuple[str, str]]]:
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


def _ranks(runs: Sequence[_Run]) -> list[tuple[str, list[dict[str, Any]]]]:
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
                    "ranks": [_spread(layer[key]) for key in _RANKS],
                }
                for slot, run in enumerate(runs)
                if (layer := run.layer(path))
            ],
        )
        for path in _layer_paths(runs)
    ]


def _alignments(runs: Sequence[_Run]) -> list[tuple[str, str, list[dict[str, Any]]]]:
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
    means = {key: [_known_mean(_figure(heads, key)) for heads in columns] for key in _KPCA}
    return {
        "verdict": layer["verdict"],
        "figures": [
            (
                _number(own),
                [f"{name} {_number(each)}" for name, each in zip(layer["baselines"], rest, strict=True)],
            )
            for own, *rest in means.values()
        ],
    }


def _known_mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def _origin(run: _Run) -> dict[str, Any]:
    """Where the numbers come from: seed, date, cases, machine and versions, flat."""
    known = {"seed": run.config.get("seed")} | run.result
    plain = ("seed", "date", "classes", "train_cases", "valid_cases", "test_cases")
    flat = {key.replace("_", " "): known[key] for key in plain if known.get(key) is not None}
    flat |= {f"spectrum {key}": run.spectrum[key] for key in ("cases", "length") if key in run.spectrum}
    flat |= {f"kernel PCA {key}": run.kpca[key] for key in ("cases", "length", "seed") if key in run.kpca}
    flat |= {f"flow {key}": run.flow[key] for key in ("cases", "length") if key in run.flow}
    flat |= {f"transport {key}": run.transport[key] for key in ("points", "looks") if key in run.transport}
    for group in ("machine", "versions"):
        flat |= {f"{group}: {key}": value for key, value in run.result.get(group, {}).items()}
    return flat


def _compare(columns: Sequence[Mapping[str, Any]], *, gaps_differ: bool) -> list[tuple[str, list[str], bool]]:
    """Rows of a side-by-side table: a key, its value in every column, and whether they differ."""
    keys = dict.fromkeys(key for column in columns for key in column)
    rows = [(key, [_word(column.get(key)) for column in columns]) for key in keys]
    ignored = set() if gaps_differ else {"–"}
    return [(key, words, len(set(words) - ignored) > 1) for key, words in rows]


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


def _spread(values: Sequence[float]) -> tuple[str, str]:
    """The mean, and the lowest to the highest where they differ."""
    if not values:
        return "–", ""
    low, high = min(values), max(values)
    return _number(sum(values) / len(values)), "" if low == high else f"{_number(low)}–{_number(high)}"
