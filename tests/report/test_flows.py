"""The section on flow: its rows, its chart, when it appears, and what a broken record is told."""

import json
from pathlib import Path
from typing import Any

import pytest

from kernelhead import records
from kernelhead.errors import BadInput
from kernelhead.report import summary, write_report
from kernelhead.report.flows import TABLES, flow_chart, flow_rows
from tests.report.test_page import Page

TITLE = "Flow between groups of points"


def layer(path: str, cross: float, uniform: float = 0.25) -> dict[str, Any]:
    tables = {key: [[1 - cross, cross], [cross, 1 - cross]] for key in TABLES}
    tables["uniform"] = [[1 - uniform, uniform], [0.0, 1.0]]
    return {"path": path, "imf": cross, "uniform_imf": uniform, **tables}


def record(*layers: dict[str, Any]) -> dict[str, Any]:
    return {"layers": [*layers], "groups": {"words": 3.5, "image": 9.0}, "cases": 4, "length": 15}


def run(folder: Path, flow: dict[str, Any] | None) -> Path:
    records.write_json(folder / records.CONFIG, {"name": folder.name})
    if flow is not None:
        records.write_json(folder / records.FLOW, flow)
    return folder


def test_the_section_has_a_row_for_every_pair_and_layer(tmp_path: Path) -> None:
    runs = [run(tmp_path / "a", record(layer("0", 0.125), layer("1", 0.5))), run(tmp_path / "b", None)]
    text = write_report(runs, tmp_path / "page.html").read_text("utf-8")
    page = Page(text)
    assert TITLE in page.headings
    table = page.tables[1]
    heads = ["Run", "Layer", "Groups", "Alone", "Cumulated", "Uniform", "Regrouped", "Relative"]
    assert table[0] == heads
    assert table[1] == ["● a", "0", "words ← image", "0.125", "0.125", "0.25", "0.125", "0.5"]
    assert table[4] == ["● a", "1", "image ← words", "0.5", "0.5", "0", "0.5", "–"]
    labels = [str(attrs["aria-label"]) for tag, attrs in page.tags if tag == "svg"]
    assert labels == ["Line chart: flow between groups by layer; runs: 1"]
    assert ["flow cases", "4", "–"] in page.tables[-1]
    assert text.count("<figure>") == text.count("<figcaption>")


def test_without_a_record_there_is_no_section(tmp_path: Path) -> None:
    page = write_report([run(tmp_path / "a", None)], tmp_path / "page.html").read_text("utf-8")
    assert TITLE not in page


def test_parts_of_the_section() -> None:
    found = flow_rows(record(layer("0", 0.5)))
    assert [(pair, row[-1]) for _, pair, row in found] == [("words ← image", 2.0), ("image ← words", None)]
    assert flow_chart({}) == flow_chart({0: record()}) == ""
    assert "<svg" in flow_chart({0: record(layer("0", 0.5))})


@pytest.mark.parametrize(
    "broken",
    [
        {"cases": 3},
        {"layers": 3, "groups": {}},
        {**record(layer("0", 0.5)), "groups": {"words": 1.0}},
        record({**layer("0", 0.5), "path": 3}),
        record({key: value for key, value in layer("0", 0.5).items() if key != "regrouped"}),
        record({**layer("0", 0.5), "imf": float("nan")}),
        record({**layer("0", 0.5), "single": [[0.5, "a"], [0.5, 0.5]]}),
    ],
    ids=str,
)
def test_a_broken_record_is_named(broken: dict[str, Any], tmp_path: Path) -> None:
    folder = run(tmp_path / "a", None)
    (folder / records.FLOW).write_text(json.dumps(broken))
    with pytest.raises(
        BadInput, match=r"flow.json: expected groups and layers, each with a path, imf, uniform_imf"
    ):
        summary([folder])
