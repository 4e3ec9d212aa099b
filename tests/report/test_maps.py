"""Heat maps on the page: a byte a cell, a bound on their number, records that are none."""

from base64 import b64decode
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernelhead import records
from kernelhead.errors import BadInput
from kernelhead.report import summary, write_report
from kernelhead.report.maps import check_maps, drawable
from tests.report.samples import map_of, write_run

CELLS = st.lists(st.lists(st.floats(-1e3, 1e3), min_size=3, max_size=3), min_size=1, max_size=4)


def record(*heads: list[list[float]], points: tuple[int, int] = (9, 9)) -> dict[str, Any]:
    return {"layers": [{"path": "a", "kind": "b", "points": [*points], "heads": [*heads]}]}


def read_back(head: dict[str, Any], shape: list[int]) -> np.ndarray:
    steps = np.frombuffer(b64decode(head["cells"]), np.uint8).reshape(shape).astype(float)
    return np.asarray(head["low"] + (head["high"] - head["low"]) * steps / 255)


@given(cells=CELLS)
def test_a_byte_is_as_near_as_a_byte_can_be(cells: list[list[float]]) -> None:
    [[layer]] = drawable([record(cells)])
    head = layer["heads"][0]
    step = (head["high"] - head["low"]) / 255
    # Half a step, and the four digits of both ends.
    allowed = 0.5 * step + 1e-3 * max(abs(head["low"]), abs(head["high"])) + 1e-12
    assert np.abs(read_back(head, layer["shape"]) - cells).max() <= allowed


def test_too_many_cells_are_drawn_coarser() -> None:
    cells = np.arange(25.0).reshape(5, 5)
    [[layer]] = drawable([record(cells.tolist())], most=9)
    assert layer["shape"] == [3, 3]
    expected = [[np.mean(cells[i : i + 2, j : j + 2]) for j in (0, 2, 4)] for i in (0, 2, 4)]
    np.testing.assert_allclose(read_back(layer["heads"][0], [3, 3]), expected, atol=0.05)
    assert drawable([{}, record([[1.0]])])[0] == []
    assert drawable([record()])[0][0]["shape"] == [0, 0]


@pytest.mark.slow
def test_a_normal_page_is_small(tmp_path: Path) -> None:
    """Three runs of six layers of eight heads, maps of 48 by 48 cells, two hundred epochs."""
    runs = [
        write_run(tmp_path / name, name, layers=6, heads=8, epochs=200, cells=48) for name in ("a", "b", "c")
    ]
    assert write_report(runs, tmp_path / "page.html").stat().st_size < 2_000_000


def test_without_a_record_there_is_no_section(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", "a")
    assert 'id="maps"' in write_report([run], tmp_path / "page.html").read_text("utf-8")
    (run / records.MAPS).unlink()
    assert 'id="maps"' not in write_report([run], tmp_path / "page.html").read_text("utf-8")


@pytest.mark.parametrize(
    "broken",
    [
        {"case": 0},
        {"layers": 3},
        {"layers": [{"path": "a", "kind": "b", "points": [2, 2]}]},
        {"layers": [map_of("a", 1, 2) | {"path": 3}]},
        {"layers": [map_of("a", 1, 2) | {"points": 4}]},
        record([[float("nan")]]),
        record([[1.0], [1.0, 2.0]]),  # type: ignore[list-item]
        record([["one"]]),  # type: ignore[list-item]
        record([1.0]),  # type: ignore[list-item]
        record([[1.0, 2.0]], points=(1, 1)),
        record([[]]),
    ],
    ids=str,
)
def test_a_broken_record_is_named(broken: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(
        BadInput, match=r"maps.json: expected layers, each with a path, a kind, points and heads"
    ):
        check_maps(broken, "maps.json")


def test_the_file_is_named(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", "a")
    (run / records.MAPS).write_text('{"layers": [{}]}')
    with pytest.raises(BadInput, match=r"run/maps.json: expected layers"):
        summary([run])
