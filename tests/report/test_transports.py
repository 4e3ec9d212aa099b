"""The section on transport: its rows, its charts, when it appears, and what a broken record is told."""

from pathlib import Path
from typing import Any

import pytest
import torch

from kernelhead import records
from kernelhead.errors import BadInput
from kernelhead.inspection import transport_record, transport_report, transport_trace
from kernelhead.report import summary, write_report
from kernelhead.report.transports import FIGURES, transport_charts
from tests.inputs import points
from tests.report.test_page import Page

TITLE = "Training as transport"


def record(*, trace: bool = True) -> dict[str, Any]:
    clouds, labels = [points(8, 2, seed=look) for look in range(4)], torch.arange(8) // 4
    report = transport_report(clouds, labels, untrained=points(8, 2, seed=9))
    return transport_record(report, transport_trace(clouds, labels) if trace else None, layer="blocks.0")


def run(folder: Path, transport: dict[str, Any] | None) -> Path:
    records.write_json(folder / records.CONFIG, {"name": folder.name})
    if transport is not None:
        records.write_json(folder / records.TRANSPORT, transport)
    return folder


def test_the_section_has_a_row_for_the_training_and_each_null(tmp_path: Path) -> None:
    held = record()
    page = Page(
        write_report(
            [run(tmp_path / "a", held), run(tmp_path / "b", None)], tmp_path / "page.html"
        ).read_text("utf-8")
    )
    assert TITLE in page.headings
    table = page.tables[1]
    assert table[0] == ["Run", "Layer", "Of", *FIGURES.values()]
    assert [row[-9] for row in table[1:]] == ["training", "permutation", "straight line", "untrained"]
    assert table[1][:3] == ["● a", "blocks.0", "training"]
    assert table[1][3] == f"{held['figures']['optimality']:.3g}"
    labels = [str(attrs["aria-label"]) for tag, attrs in page.tags if tag == "svg"]
    assert labels == [
        f"Line chart: {name} of transport by look; runs: 1"
        for name in ("optimality", "matching", "efficiency")
    ]
    assert ["transport points", "8", "–"] in page.tables[-1]
    assert "transport" in page.ids()


def test_without_a_trace_there_is_no_chart_and_without_a_record_no_section(tmp_path: Path) -> None:
    assert transport_charts({0: record(trace=False)}) == []
    page = write_report([run(tmp_path / "a", None)], tmp_path / "page.html").read_text("utf-8")
    assert TITLE not in page


@pytest.mark.parametrize("key", ["layer", "figures", "nulls", "trace", "points"])
def test_a_broken_record_is_named(key: str, tmp_path: Path) -> None:
    broken = {name: value for name, value in record().items() if name != key}
    with pytest.raises(BadInput, match=r"transport\.json: expected layer, points, looks"):
        summary([run(tmp_path / "a", broken)])
