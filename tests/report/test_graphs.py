"""Graphs on the page: marks at the ends of edges, names that are safe, records that are none."""

from pathlib import Path
from typing import Any

import pytest

from kernelhead import records
from kernelhead.errors import BadInput
from kernelhead.report import write_report
from kernelhead.report.charts import PALETTE
from kernelhead.report.graphs import check_graph, drawn, pictures

HEAD: dict[str, Any] = {
    "head": 0,
    "nodes": [1, 4, 6],
    "names": ["<a>", "b" * 30, "c"],
    "marks": [[0, 2, 0], [1, 0, 2], [0, 3, 0]],
    "edges": [{"from": 1, "marks": "o->", "to": 4}, {"from": 4, "marks": "-->", "to": 6}],
    "shared": {"attention": 0.5, "random": 0.25},
    "notes": ["of note"],
}
RECORD = {"path": "blocks.1", "heads": [HEAD, {"head": None, "reason": "rows are the same"}]}


def test_every_end_has_its_mark() -> None:
    svg = drawn(HEAD, slot=2, label='a "label"')
    assert (svg.count("<line"), svg.count("<polygon"), svg.count('r="3"'), svg.count('r="5"')) == (2, 2, 1, 3)
    assert "--edge: var(--run-2)" in svg
    # Colours begin again where there are more runs than colours.
    assert "--edge: var(--run-1)" in drawn(HEAD, slot=len(PALETTE) + 1, label="")
    assert "&lt;a&gt;" in svg
    assert f"{'b' * 13}…" in svg
    assert "a &quot;label&quot;" in svg


def test_a_page_shows_graphs_beside_their_baselines(tmp_path: Path) -> None:
    records.write_json(tmp_path / records.CONFIG, {"name": "tiny"})
    records.write_json(tmp_path / records.GRAPH, RECORD)
    page = write_report([tmp_path], tmp_path / records.REPORT).read_text("utf-8")
    assert '<h2 id="graphs">Graphs of causes</h2>' in page
    assert "&lt;a&gt; o-&gt; " in page
    assert "by attention 0.50, random 0.25. Note: of note." in page
    assert "Mean of heads: no graph, for rows are the same." in page
    (tmp_path / records.GRAPH).unlink()
    assert "Graphs of causes" not in write_report([tmp_path], tmp_path / "b.html").read_text("utf-8")


@pytest.mark.parametrize(
    "record",
    [
        {"path": "x"},
        {"path": 3, "heads": [HEAD]},
        {"path": "x", "heads": [{**HEAD, "marks": [[0]]}]},
        {"path": "x", "heads": [{**HEAD, "edges": [{"from": 9, "marks": "-->", "to": 1}]}]},
        {"path": "x", "heads": [{"head": 0}]},
        {"path": "x", "heads": [{**HEAD, "shared": {"random": "much"}}]},
    ],
)
def test_a_broken_record_is_named(record: dict[str, Any]) -> None:
    with pytest.raises(BadInput, match=r"g\.json: expected a path and heads, each with names, nodes, marks"):
        check_graph(record, "g.json")


def test_no_record_is_no_complaint() -> None:
    check_graph({}, "g.json")
    assert [(name, bool(svg)) for name, svg, _ in pictures(RECORD, 0)] == [
        ("Head 0", True),
        ("Mean of heads", False),
    ]
