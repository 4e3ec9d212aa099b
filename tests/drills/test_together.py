"""Several runs into one folder: one of them wins, the others say so, and files are of one run."""

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from kernelhead.errors import CheckpointError
from kernelhead.records import WEIGHTS
from kernelhead.training import event_recipe_from, load_run, train_event_run, train_run
from kernelhead.training.places import alone_in
from tests.drills.crashes import check_whole, held_by
from tests.training import tiny_events
from tests.training.tiny import options, recipe, series, start, write_csv

Tell = Callable[[str, object], None]


def test_a_folder_that_is_held_is_refused_and_untouched(tmp_path: Path) -> None:
    write_csv(tmp_path / "train.csv", series())
    tiny_events.write(tmp_path / "events.csv", tiny_events.drawn())
    events = event_recipe_from({"data": str(tmp_path / "events.csv"), "epochs": 1, "width": 8}, "drill")
    made, out = recipe(tmp_path / "train.csv", epochs=1), tmp_path / "run"
    out.mkdir()
    with alone_in(out):
        for fresh in (False, True):
            with pytest.raises(CheckpointError, match=r"another run is training into .*run; wait for it"):
                train_run(made, out, fresh=fresh)
            with pytest.raises(CheckpointError, match=r"another run is training into .*run; wait for it"):
                train_event_run(events, out, fresh=fresh)
    assert [*out.iterdir()] == []
    train_run(made, out)
    assert load_run(out).recipe == made


def test_what_a_killed_run_left_is_taken_away(tmp_path: Path) -> None:
    for name in (f".{WEIGHTS}.abcdefgh", ".mine.txt"):
        (tmp_path / name).write_bytes(b"half")
    (tmp_path / f".{WEIGHTS}.abcdefgh.folder").mkdir()
    (tmp_path / f".{WEIGHTS}.abcdefgh.folder" / ".tmp").write_bytes(b"half")
    with alone_in(tmp_path):
        assert [each.name for each in tmp_path.iterdir()] == [".mine.txt"]


def race(tmp_path: Path, words: list[list[object]]) -> list[tuple[int, str]]:
    """Start commands at once; the exit code and the last word of each."""
    begun = [start(*each, cwd=tmp_path) for each in words]
    while any(each.poll() is None for each in begun):
        check_whole(tmp_path)
        time.sleep(0.01)
    return [(each.returncode, each.communicate()[1].strip()) for each in begun]


@pytest.mark.drill
@pytest.mark.parametrize("case", ["same", "seeds", "fresh", "kinds"])
def test_two_commands_into_one_folder(case: str, tmp_path: Path, record_property: Tell) -> None:
    write_csv(tmp_path / "train.csv", series())
    tiny_events.write(tmp_path / "events.csv", tiny_events.drawn())
    series_words = ["train", "train.csv", *options(epochs=40, batch=4)]
    commands = {
        "same": [series_words, series_words],
        "seeds": [series_words, [*series_words, "--seed", "1"]],
        "fresh": [series_words, [*series_words, "--seed", "1", "--fresh"]],
        "kinds": [series_words, ["train", "events.csv", "--epochs", "40", "--accelerator", "cpu"]],
    }[case]
    for number, words in enumerate(commands):
        assert race(tmp_path, [[*words, "--out", f"alone{number}"]])[0][0] == 0
    alone = [held_by(tmp_path / f"alone{number}") for number in (0, 1)]
    runs, refused = 4, 0
    for number in range(runs):
        ends = race(tmp_path, [[*words, "--out", f"run{number}"] for words in commands])
        codes = sorted(code for code, _ in ends)
        # Two that end well went one after the other: the same recipe, which is kept, or --fresh.
        assert codes == [0, 2] or (codes == [0, 0] and case in ("same", "fresh")), ends
        for said in (said for code, said in ends if code):
            refused += 1
            assert len(said.splitlines()) == 1, said
            assert "another run is training into" in said or "holds a run of another recipe" in said
        assert held_by(tmp_path / f"run{number}") in alone
    record_property("races", f"{runs} ({refused} refusals)")


WRITER = """
import sys
from pathlib import Path
from kernelhead.training.ledger import Ledger
for seed in range(40):
    row = {"data": sys.argv[2], "variant": "a", "protocol": "clean", "recipe_hash": "0", "status": "done"}
    Ledger(Path(sys.argv[1])).add({**row, "seed": seed})
"""


@pytest.mark.drill
def test_many_writers_of_one_ledger_lose_nothing(tmp_path: Path, record_property: Tell) -> None:
    words = [[sys.executable, "-c", WRITER, str(tmp_path / "a.json"), name] for name in "abcd"]
    begun = [subprocess.Popen(each) for each in words]
    while any(each.poll() is None for each in begun):
        check_whole(tmp_path)
        time.sleep(0.005)
    rows = json.loads((tmp_path / "a.json").read_text())["rows"]
    assert [(row["data"], row["seed"]) for row in rows] == [
        (name, seed) for name in "abcd" for seed in range(40)
    ]
    record_property("rows", len(rows))
