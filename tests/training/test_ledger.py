"""Ledger: rows in place, whole files, and writers that do not lose each other's rows."""

import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from kernelhead.errors import BadInput
from kernelhead.training import Ledger
from kernelhead.training.ledger import commit, digest, machine, peak_mib, versions


def row(seed: int = 0, **changes: Any) -> dict[str, Any]:
    base = {"data": "a", "variant": "b", "protocol": "clean", "seed": seed, "recipe_hash": "0"}
    return {**base, "status": "done", "figures": {"score": 0.5}, **changes}


def test_rows_are_sorted_whatever_their_order(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "new" / "tiny.json")
    assert ledger.rows() == []
    given = [row(1), row(data="A"), row(0), row(variant="a"), row(protocol="paper")]
    for each in given:
        ledger.add(each)
    assert ledger.rows() == [given[1], given[3], given[2], given[0], given[4]]
    assert [path.name for path in ledger.path.parent.iterdir()] == ["tiny.json"]


def test_a_row_takes_the_place_of_its_job(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "tiny.json")
    for each in (row(0), row(1), row(0, figures={"score": 0.7})):
        ledger.add(each)
    assert ledger.rows() == [row(0, figures={"score": 0.7}), row(1)]
    assert {*ledger.by_job()} == {("a", "b", "clean", 0, "0"), ("a", "b", "clean", 1, "0")}


def test_curves_come_back_and_rows_without_stay_as_they_are(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "tiny.json")
    given = [row(0), row(1, curves={"spectrum": [0.7, 0.3], "learned": [1.0, 1.23457e-09]})]
    for each in given:
        ledger.add(each)
    assert ledger.rows() == given


def test_a_cell_holds_one_recipe(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "tiny.json")
    for each in (row(0), row(1), row(0, protocol="paper"), row(0, recipe_hash="1")):
        ledger.add(each)
    assert ledger.rows() == [row(0, recipe_hash="1"), row(0, protocol="paper")]


def test_what_a_killed_writer_left_goes(tmp_path: Path) -> None:
    left = tmp_path / ".tiny.json.abc"
    left.write_text('{"half')
    Ledger(tmp_path / "tiny.json").add(row())
    assert not left.exists()


@pytest.mark.slow
def test_writers_side_by_side_lose_nothing(tmp_path: Path) -> None:
    path = tmp_path / "tiny.json"
    writers = [writing(path, name, 20) for name in ("left", "right")]
    assert [writer.wait(timeout=120) for writer in writers] == [0, 0]
    assert len(Ledger(path).rows()) == 40


def writing(path: Path, name: str, rows: int) -> "subprocess.Popen[bytes]":
    """A process that writes so many rows."""
    code = (
        "import sys; from pathlib import Path; from tests.training.test_ledger import row\n"
        "from kernelhead.training import Ledger\n"
        "for seed in range(int(sys.argv[3])): Ledger(Path(sys.argv[1])).add(row(seed, data=sys.argv[2]))"
    )
    root = Path(__file__).parents[2]
    return subprocess.Popen([sys.executable, "-c", code, str(path), name, str(rows)], cwd=root)


@pytest.mark.slow
def test_a_writer_killed_at_any_time_leaves_a_whole_file(tmp_path: Path) -> None:
    path = tmp_path / "tiny.json"
    for least in (5, 25, 60):
        writer = writing(path, "left", 5000)
        while len(Ledger(path).rows()) < least:
            time.sleep(0.001)
        writer.kill()
        writer.wait(timeout=60)
        assert [each["seed"] for each in Ledger(path).rows()][:least] == [*range(least)]
    Ledger(path).add(row(data="right"))
    assert [each.name for each in tmp_path.iterdir()] == ["tiny.json"]


@pytest.mark.parametrize("text", ["{}", '{"rows": 1}', '{"rows": [1]}', '{"rows": [{"data": "a"}]}'])
def test_another_file_is_refused_and_left_alone(text: str, tmp_path: Path) -> None:
    path = tmp_path / "tiny.json"
    path.write_text(text)
    with pytest.raises(BadInput, match=r"tiny\.json is not a ledger, expected rows with data, variant"):
        Ledger(path).add(row())
    assert path.read_text() == text


def test_where_a_row_comes_from() -> None:
    assert {*machine()} == {"system", "device", "threads"}
    assert {"python", "torch", "numpy"} <= {*versions()}
    assert peak_mib() > 10
    found = commit()
    assert found is None or len(found.removesuffix("-dirty")) >= 12
    assert len(digest({})) == 16
