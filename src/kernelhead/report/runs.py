"""Run folders as the page reads them: all records of each, looked at before anything is drawn."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kernelhead import records
from kernelhead.errors import BadInput
from kernelhead.report.flows import check_flow
from kernelhead.report.graphs import check_graph
from kernelhead.report.learning import PARTS
from kernelhead.report.maps import check_maps
from kernelhead.report.robustness import check_robustness
from kernelhead.report.transports import check_transport

RANKS = {
    "effective_rank": "Effective rank",
    "energy_rank_90": "90 % energy",
    "energy_rank_95": "95 % energy",
    "energy_rank_99": "99 % energy",
}
KPCA = {
    "explained": "Explained",
    "cosine_mean": "Cosine",
    "span_residual": "Span residual",
    "bessel_rate": "Bessel broken",
}
_PER_EPOCH = (
    *("epoch", "train_loss", "train_accuracy", "valid_loss", "valid_accuracy", "seconds"),
    *("penalty", *PARTS),
)
_LARGEST = 10**300  # of whole numbers, which JSON does not bound
_SIGNED = {"name", "data"}  # all that the configuration of a folder of records says
_AT_END = (
    *("test_accuracy", "valid_accuracy", "best_epoch", "test_cases"),
    *("parameters", "seconds_per_epoch", "peak_memory_mib"),
)


@dataclass(frozen=True)
class Run:
    """What one folder holds; `result` is empty while the run is unfinished.

    Example:
        >>> Run(Path("mine"), {}, [], {}, {}, {}, {}, {}, {}, {}).name
        'mine'
    """

    folder: Path
    config: dict[str, Any]
    metrics: list[dict[str, Any]]
    result: dict[str, Any]
    spectrum: dict[str, Any]
    maps: dict[str, Any]
    kpca: dict[str, Any]
    flow: dict[str, Any]
    graph: dict[str, Any]
    transport: dict[str, Any]

    @property
    def name(self) -> str:
        """Its own, or that of its folder."""
        return str(self.result.get("name") or self.config.get("name") or self.folder.name)

    @property
    def only_records(self) -> bool:
        """Whether nothing was trained here: a folder for what was read of a model."""
        return bool(self.config) and self.config.keys() <= _SIGNED and not self.metrics

    def layer(self, path: str) -> dict[str, Any] | None:
        """The spectrum of one layer, if it was read."""
        return next((layer for layer in self.spectrum.get("layers", []) if layer["path"] == path), None)

    def aligned(self, path: str) -> dict[str, Any] | None:
        """What is known of one layer as a kernel PCA, if it was read."""
        return next((layer for layer in self.kpca.get("layers", []) if layer["path"] == path), None)


def read_runs(runs: Sequence[Path]) -> tuple[list[Run], list[tuple[str, dict[str, Any]]]]:
    """The runs, and the records of robustness beside them or in folders of their own, with their names.

    Raises:
        BadInput: no run is given, a folder is not a run, or a record is broken.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> with TemporaryDirectory() as folder:
        ...     records.write_json(Path(folder, records.CONFIG), {"name": "tiny"})
        ...     [run], tried = read_runs([Path(folder)])
        >>> run.name, run.only_records, tried
        ('tiny', True, [])
    """
    if not runs:
        raise BadInput("report: no run folder is given, expected at least one")
    folders = [*dict.fromkeys(Path(run).resolve() for run in runs)]
    tried = [folder for folder in folders if (folder / records.ROBUSTNESS).is_file()]
    alone = [folder for folder in tried if not (folder / records.CONFIG).is_file()]
    return [_read(each) for each in folders if each not in alone], [_robustness(each) for each in tried]


def _robustness(folder: Path) -> tuple[str, dict[str, Any]]:
    path = folder / records.ROBUSTNESS
    record = records.read_json(path)
    check_robustness(record, str(path))
    return f"{folder.name}/{path.name}", record


def _read(folder: Path) -> Run:
    if not (folder / records.CONFIG).is_file():
        raise BadInput(f"{folder} is not a run folder: it has no {records.CONFIG}")
    names = (
        *(records.RESULT, records.SPECTRUM, records.MAPS, records.KPCA),
        *(records.FLOW, records.GRAPH, records.TRANSPORT),
    )
    paths = [folder / name for name in names]
    run = Run(
        folder,
        records.read_json(folder / records.CONFIG),
        records.read_lines(folder / records.METRICS),
        *(records.read_json(path) if path.exists() else {} for path in paths),
    )
    result, spectrum, maps, kpca, flow, graph, transport = map(str, paths)
    _check_numbers(run.config, _AT_END, str(folder / records.CONFIG))
    for number, line in enumerate(run.metrics, start=1):
        _check_numbers(line, _PER_EPOCH, f"{folder / records.METRICS}, line {number}")
        if line.get("epoch") is None:
            raise BadInput(f"{folder / records.METRICS}, line {number} has no epoch")
    _check_numbers(run.result, _AT_END, result)
    for group in ("machine", "versions"):
        if not isinstance(run.result.get(group, {}), dict):
            raise BadInput(f"{result}: {group} is {run.result[group]!r}, expected a JSON object")
    _check_spectrum(run.spectrum, spectrum)
    check_maps(run.maps, maps)
    _check_kpca(run.kpca, kpca)
    check_flow(run.flow, flow)
    check_graph(run.graph, graph)
    check_transport(run.transport, transport)
    return run


def _check_numbers(record: object, keys: Sequence[str], where: str) -> None:
    """Refuse a record whose measured values are neither numbers nor null."""
    if not isinstance(record, dict):
        raise BadInput(f"{where} holds a {type(record).__name__}, expected a JSON object")
    for key in keys:
        value = record.get(key, 0)
        if not isinstance(value, int | float | None) or (isinstance(value, int) and abs(value) > _LARGEST):
            raise BadInput(f"{where}: {key} is {record[key]!r}, expected a number")


def _check_spectrum(record: dict[str, Any], where: str) -> None:
    try:
        for layer in record["layers"] if record else []:
            rows = [*layer["heads"], *(layer[key] for key in RANKS)]
            if not isinstance(layer["path"], str) or not all(math.isfinite(v) for row in rows for v in row):
                raise TypeError
    except (KeyError, TypeError, OverflowError) as error:
        expected = f"a path, heads and {', '.join(RANKS)}"
        raise BadInput(f"{where}: expected layers, each with {expected}, of finite numbers") from error


def _check_kpca(record: dict[str, Any], where: str) -> None:
    try:
        for layer in record["layers"] if record else []:
            columns = [layer["heads"], *layer["baselines"].values()]
            figures = [head[key] for heads in columns for head in heads for key in KPCA]
            words = [layer[key] for key in ("path", "verdict")]
            if not all(isinstance(word, str) for word in words) or len({*map(len, columns)}) != 1:
                raise TypeError
            if not layer["baselines"] or not all(each is None or math.isfinite(each) for each in figures):
                raise TypeError
    except (KeyError, TypeError, AttributeError, OverflowError) as error:
        expected = f"a path, a verdict, and heads and baselines with {', '.join(KPCA)}"
        raise BadInput(f"{where}: expected layers, each with {expected}") from error


def labels_of(runs: Sequence[Run]) -> list[str]:
    """The name of each run, and as much of its folder as tells equal names apart.

    Example:
        >>> labels_of([Run(Path(each), {"name": "a"}, [], {}, {}, {}, {}, {}, {}, {}) for each in ("x", "y")])
        ['a (x)', 'a (y)']
    """
    shared = Counter(run.name for run in runs)
    labels: list[str] = []
    for depth in range(1, 1 + max((len(run.folder.parts) for run in runs), default=0)):
        labels = [
            run.name if shared[run.name] == 1 else f"{run.name} ({'/'.join(run.folder.parts[-depth:])})"
            for run in runs
        ]
        if len(set(labels)) == len(labels):
            break
    return labels
