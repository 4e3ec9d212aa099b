"""Runs: what a folder holds, when it is refused, and that a killed or shared run ends the same."""

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from kernelhead.cli.__main__ import main
from kernelhead.data import Series, Standardiser, read_series, split
from kernelhead.errors import BadInput, CheckpointError, KernelheadError, ShapeError, UnknownName
from kernelhead.nn.store import write_tensors
from kernelhead.records import (
    CHECKPOINT,
    CONFIG,
    MAPS,
    METRICS,
    RESULT,
    SPECTRUM,
    WEIGHTS,
    read_json,
    read_lines,
)
from kernelhead.training import Watcher, build, load_run, scores, train_run
from kernelhead.training import runs as runs_module
from kernelhead.training.loop import PARTS
from kernelhead.training.store import load_tensors, save_tensors
from tests.training.tiny import call, options, recipe, series, start, write_csv, write_npz

TIME = ("seconds", "seconds_per_epoch", "peak_memory_mib", "date")


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with train.csv and test.csv."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("KERNELHEAD_DATA", raising=False)
    write_csv(tmp_path / "train.csv", series(24))
    write_csv(tmp_path / "test.csv", series(12, seed=1))
    return tmp_path


def timeless(record: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in record.items() if name not in TIME}


def content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())} if folder.exists() else {}


def test_a_run_leaves_its_records(files: Path) -> None:
    given, folder = recipe("train.csv", test="test.csv", name="mine"), files / "run"
    result = train_run(given, folder)
    assert set(content(folder)) == {CONFIG, CHECKPOINT, WEIGHTS, METRICS, RESULT, SPECTRUM, MAPS}
    assert read_json(folder / CONFIG) == given.to_dict()
    assert read_json(folder / RESULT) == result
    rows = read_lines(folder / METRICS)
    assert [row["epoch"] for row in rows] == [1, 2, 3]
    assert result["valid_accuracy"] == rows[result["best_epoch"] - 1]["valid_accuracy"]
    assert (result["train_cases"], result["valid_cases"], result["test_cases"]) == (20, 4, 12)
    assert (result["name"], result["data"], result["classes"]) == ("mine", "train", 2)
    assert result["peak_memory_mib"] > 1
    assert result["parameters"] == sum(p.numel() for p in load_run(folder).model.parameters())
    assert read_json(folder / SPECTRUM)["layers"][0]["path"] == "blocks.0.attention"


def test_a_loaded_run_scores_as_the_trained_one(files: Path) -> None:
    result = train_run(recipe("train.csv", test="test.csv"), files / "run")
    trained, test = load_run(files / "run"), read_series("test.csv")
    assert not trained.model.training
    assert trained.accuracy_and_loss(test) == (result["test_accuracy"], result["test_loss"])
    assert torch.equal(trained.scores(test), load_run(files / "run").scores(replace(test, labels=None)))


def test_the_global_generator_stays_where_it_is(files: Path) -> None:
    before = torch.get_rng_state()
    train_run(recipe("train.csv", dropout=0.3), files / "run")
    load_run(files / "run")
    assert torch.equal(torch.get_rng_state(), before)


def test_the_test_part_has_no_say(files: Path) -> None:
    write_csv(files / "other.csv", series(9, seed=7))
    for name, test in (("one", "test.csv"), ("two", "other.csv"), ("none", "")):
        train_run(recipe("train.csv", test=test, epochs=4, lr=0.02), files / name)
    one, two, none = (load_tensors(files / name / WEIGHTS)[0] for name in ("one", "two", "none"))
    assert all(torch.equal(one[name], two[name]) and torch.equal(one[name], none[name]) for name in one)
    rows = [list(map(timeless, read_lines(files / name / METRICS))) for name in ("one", "two", "none")]
    assert rows[0] == rows[1] == rows[2]


def test_the_test_part_is_scored_once_and_last(files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []

    def spy(model: torch.nn.Module, held: Series, **more: Any) -> torch.Tensor:
        seen.append(len(held))
        return scores(model, held, **more)

    monkeypatch.setattr("kernelhead.training.loop.scores", spy)
    train_run(recipe("train.csv", test="test.csv"), files / "run")
    assert seen == [4, 4, 4, 12]


def test_the_standardiser_knows_the_training_part_only(files: Path) -> None:
    train_run(recipe("train.csv", seed=3), files / "run")
    part, _ = split(read_series("train.csv"), fraction=0.2, seed=3)
    expected, found = Standardiser.fit(part), load_run(files / "run").standardiser
    assert np.array_equal(found.mean, expected.mean)
    assert np.array_equal(found.deviation, expected.deviation)


def test_the_seed_decides_the_weights(files: Path) -> None:
    for name, seed in (("one", 0), ("two", 0), ("three", 1)):
        train_run(recipe("train.csv", seed=seed, epochs=1), files / name)
    one, two, three = ((files / name / WEIGHTS).read_bytes() for name in ("one", "two", "three"))
    assert one == two != three


def test_a_finished_run_is_not_trained_again(files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result = train_run(recipe("train.csv"), files / "run")
    before = content(files / "run")

    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("trained again")

    monkeypatch.setattr(runs_module, "fit", refuse)
    assert train_run(recipe("train.csv"), files / "run") == result
    assert content(files / "run") == before
    with pytest.raises(AssertionError, match="trained again"):
        train_run(recipe("train.csv"), files / "run", fresh=True)


def test_fresh_trains_another_recipe(files: Path) -> None:
    train_run(recipe("train.csv"), files / "run")
    result = train_run(recipe("train.csv", epochs=1, width=16), files / "run", fresh=True)
    assert read_json(files / "run" / RESULT) == result
    assert len(read_lines(files / "run" / METRICS)) == 1
    assert load_run(files / "run").recipe.width == 16


def test_a_changed_recipe_is_refused_with_its_changes(files: Path) -> None:
    train_run(recipe("train.csv", epochs=1), files / "run")
    before = content(files / "run")
    words = r"holds a run of another recipe \(epochs 1 -> 2, lr 0\.001 -> 0\.5\); take another folder or say"
    with pytest.raises(BadInput, match=words):
        train_run(recipe("train.csv", epochs=2, lr=0.5), files / "run")
    assert content(files / "run") == before


def test_a_checkpoint_of_other_data_is_refused(files: Path) -> None:
    class Stopped(RuntimeError):
        pass

    def stop(row: dict[str, Any]) -> None:
        raise Stopped

    with pytest.raises(Stopped):
        train_run(recipe("train.csv"), files / "run", watcher=Watcher(epoch=stop))
    write_csv(files / "train.csv", series(24, seed=5))
    with pytest.raises(CheckpointError, match="belongs to another run than this one"):
        train_run(recipe("train.csv"), files / "run")


@pytest.mark.parametrize("save_steps", [0, 1])
@pytest.mark.parametrize("stop", [1, 4, 8])
def test_a_run_that_broke_off_ends_with_the_same_files(files: Path, save_steps: int, stop: int) -> None:
    given = recipe("train.csv", test="test.csv", dropout=0.2, save_steps=save_steps)
    expected = train_run(given, files / "straight")

    def look(done: int, total: int) -> None:
        if done == stop:
            raise RuntimeError("broken off")

    with pytest.raises(RuntimeError, match="broken off"):
        train_run(given, files / "halted", watcher=Watcher(step=look))
    assert timeless(train_run(given, files / "halted")) == timeless(expected)
    for name in (WEIGHTS, CONFIG, SPECTRUM):
        assert (files / "straight" / name).read_bytes() == (files / "halted" / name).read_bytes()


def test_a_broken_checkpoint_is_a_sentence_and_stays(files: Path) -> None:
    train_run(recipe("train.csv"), files / "run")
    (files / "run" / RESULT).unlink()
    (files / "run" / CHECKPOINT).write_bytes(b"half")
    before = content(files / "run")
    with pytest.raises(CheckpointError, match=r"checkpoint\.safetensors is not a whole safetensors file"):
        train_run(recipe("train.csv"), files / "run")
    assert content(files / "run") == before


@pytest.mark.parametrize(
    "wrong",
    [
        {"attention": "prmal"},
        {"norm": "prre"},
        {"pooling": "meen"},
        {"position": "lerned"},
        {"init": "published?"},
        {"reduction": "smple"},
        {"heads": 3},
        {"validation": 1.5},
        {"precision": "half"},
    ],
    ids=str,
)
def test_a_wrong_option_leaves_the_folder_as_it_was(files: Path, wrong: dict[str, Any]) -> None:
    with pytest.raises(KernelheadError):
        train_run(recipe("train.csv", **wrong), files / "run")
    assert not content(files / "run")
    result = train_run(recipe("train.csv", epochs=1), files / "run")
    before = content(files / "run")
    with pytest.raises(KernelheadError):
        train_run(recipe("train.csv", epochs=1, **wrong), files / "run", fresh=True)
    assert content(files / "run") == before
    assert read_json(files / "run" / RESULT) == result


def test_data_that_cannot_be_learned_from_is_a_sentence(files: Path) -> None:
    whole = series(6)
    write_csv(files / "one.csv", replace(whole, labels=("a",) * 6))
    with pytest.raises(BadInput, match="one: all 6 cases are of class 'a', expected two classes"):
        train_run(recipe("one.csv"), files / "run")
    write_csv(files / "bare.csv", whole, labels=False)
    with pytest.raises(BadInput, match="bare: has no labels, so nothing can be learned from it"):
        train_run(recipe("bare.csv"), files / "run")
    with pytest.raises(BadInput, match=r"none\.csv does not exist"):
        train_run(recipe("train.csv", test="none.csv"), files / "run")
    with pytest.raises(UnknownName, match="did you mean 'GunPoint'"):
        train_run(recipe("GunPoit"), files / "run")
    assert not (files / "run").exists()


def test_a_folder_that_cannot_be_written_is_a_sentence(files: Path) -> None:
    with pytest.raises(CheckpointError, match=r"cannot write .*train\.csv/run"):
        train_run(recipe("train.csv"), files / "train.csv" / "run")


def test_a_loss_that_is_not_finite_is_a_sentence(files: Path) -> None:
    with pytest.raises(BadInput, match=r"the loss is nan .* a smaller lr than 1e\+30 may help"):
        train_run(recipe("train.csv", lr=1e30), files / "run")
    assert WEIGHTS not in content(files / "run")


def test_an_archive_has_its_own_test_part(files: Path) -> None:
    write_npz(files / "both.npz", train=series(24), test=series(10, seed=1))
    assert train_run(recipe("both.npz", epochs=1), files / "both")["test_cases"] == 10
    write_npz(files / "half.npz", train=series(24))
    result = train_run(recipe("half.npz", epochs=1), files / "half")
    assert (result["test_cases"], result["test_accuracy"], result["test_loss"]) == (0, None, None)


def test_one_file_is_never_its_own_test_part(files: Path) -> None:
    write_npz(files / "whole.npz", whole=series(24))
    write_csv(files / "big.CSV", series(24))
    for name in ("train.csv", "whole.npz", "big.CSV"):
        result = train_run(recipe(name, epochs=1), files / f"run-{name}")
        assert (result["test_cases"], result["test_accuracy"]) == (0, None), name


def test_a_broken_test_part_is_not_passed_over(files: Path) -> None:
    test = series(10, seed=1)
    write_npz(files / "both.npz", train=series(24), test=test)
    with np.load(files / "both.npz") as held:
        arrays = dict(held)
    arrays["x_test"][3, 0, 0] = np.nan
    np.savez(files / "both.npz", **arrays)
    with pytest.raises(BadInput, match="case 3 holds nan at time 0, channel 0"):
        train_run(recipe("both.npz", epochs=1), files / "run")


@pytest.mark.parametrize(
    ("held", "kind", "sentence"),
    [
        (series(6, channels=3), KernelheadError, "the test part has 3 channels, the training part 2"),
        (replace(series(6), labels=None), BadInput, "test: the test part has no labels"),
        (series(6, classes=3), BadInput, "the test part has classes that the training part lacks: 2"),
    ],
    ids=["channels", "labels", "classes"],
)
def test_a_test_part_that_does_not_fit_is_a_sentence(
    files: Path, held: Series, kind: type[Exception], sentence: str
) -> None:
    write_csv(files / "test.csv", held, labels=held.labels is not None)
    with pytest.raises(kind, match=sentence):
        train_run(recipe("train.csv", test="test.csv", epochs=1), files / "run")


def test_other_channels_are_named(files: Path) -> None:
    train_run(recipe("train.csv", epochs=1), files / "run")
    with pytest.raises(BadInput, match="echo: has 3 channels, but the model was trained on 2"):
        load_run(files / "run").scores(series(4, channels=3))


def test_landmarks_follow_rank_and_length() -> None:
    for rank, longest, expected in ((2, 18, 18), (2, 30, 20), (3, 7, 7)):
        model = build(recipe(rank=rank), classes=2, channels=1, longest=longest)
        assert model.blocks[0].attention.landmarks == expected
    assert build(recipe(landmarks=5), classes=2, channels=1, longest=9).blocks[0].attention.landmarks == 5


def test_a_folder_without_weights_is_a_sentence(files: Path) -> None:
    with pytest.raises(
        CheckpointError, match=r"none holds no weights\.safetensors: not a run folder, or its"
    ):
        load_run(files / "none")


def test_weights_that_are_not_a_runs_are_sentences(files: Path) -> None:
    train_run(recipe("train.csv", epochs=1), files / "run")
    path = files / "run" / WEIGHTS
    tensors, facts = load_tensors(path)
    for name in facts:
        save_tensors(path, tensors, {key: value for key, value in facts.items() if key != name})
        with pytest.raises(CheckpointError, match=f"lacks what a run stores with its weights: '{name}'"):
            load_run(files / "run")
    write_tensors(path, tensors, {"facts": "[1]"})
    with pytest.raises(CheckpointError, match="was not written by kernelhead: its facts are no JSON object"):
        load_run(files / "run")
    save_tensors(path, tensors, {**facts, "channels": 7})
    with pytest.raises(CheckpointError, match=r"'embedding\.weight' is \(8, 2\), expected \(8, 7\)"):
        load_run(files / "run")
    save_tensors(path, tensors, {**facts, "recipe": {**facts["recipe"], "wdth": 3}})
    with pytest.raises(
        UnknownName, match=r"weights\.safetensors: unknown entry 'wdth', did you mean 'width'"
    ):
        load_run(files / "run")
    save_tensors(path, tensors, {**facts, "mean": [0.0]})
    with pytest.raises(ShapeError, match="expected"):
        load_run(files / "run")
    tensors.pop("head.bias")
    save_tensors(path, tensors, facts)
    with pytest.raises(CheckpointError, match=r"'head\.bias' is not in the file"):
        load_run(files / "run")


def test_the_spectra_of_a_run(files: Path) -> None:
    train_run(recipe("train.csv", epochs=1), files / "run")
    found, record = load_run(files / "run").spectra(read_series("test.csv"), cases=5)
    assert record["cases"] == 5
    assert len(record["layers"]) == len(found) == 1
    assert json.loads(json.dumps(record)) == record
    assert load_run(files / "run").spectra(read_series("test.csv"), cases=500)[1]["cases"] == 12


def epochs_done(folder: Path) -> int:
    try:
        return (folder / METRICS).read_text(encoding="utf-8").count("\n")
    except FileNotFoundError:
        return 0


@pytest.fixture
def processes() -> Iterator[list["subprocess.Popen[str]"]]:
    """Processes that do not outlive their test."""
    begun: list[subprocess.Popen[str]] = []
    yield begun
    for process in begun:
        if process.poll() is None:
            process.kill()
        process.communicate()


def wait_for_epochs(process: "subprocess.Popen[str]", folder: Path, count: int) -> None:
    limit = time.monotonic() + 90
    while epochs_done(folder) < count:
        if process.poll() is not None or time.monotonic() > limit:
            raise AssertionError(f"no epoch {count}: {process.communicate()}")
        time.sleep(0.005)


LONG = {"epochs": 15, "batch": 2, "dropout": 0.2}


@pytest.mark.slow
@pytest.mark.parametrize("save_steps", [0, 3])
def test_a_process_that_is_killed_goes_on_to_the_same_bits(
    files: Path, save_steps: int, processes: list["subprocess.Popen[str]"]
) -> None:
    train_run(recipe("train.csv", **LONG, save_steps=save_steps), files / "straight")
    words = ["train", "train.csv", *options(**LONG, save_steps=save_steps), "--out", "killed"]
    processes.append(start(*words, cwd=files))
    wait_for_epochs(processes[0], files / "killed", 2)
    os.kill(processes[0].pid, signal.SIGKILL)
    processes[0].communicate()
    assert 2 <= epochs_done(files / "killed") < 15
    assert not (files / "killed" / RESULT).exists()
    assert main(words) == 0
    assert (files / "killed" / WEIGHTS).read_bytes() == (files / "straight" / WEIGHTS).read_bytes()
    rows = [list(map(timeless, read_lines(files / name / METRICS))) for name in ("killed", "straight")]
    assert rows[0] == rows[1]


@pytest.mark.slow
def test_ctrl_c_leaves_a_run_that_goes_on(files: Path, processes: list["subprocess.Popen[str]"]) -> None:
    train_run(recipe("train.csv", **LONG), files / "straight")
    words = ["train", "train.csv", *options(**LONG), "--out", "halted"]
    processes.append(start(*words, cwd=files))
    wait_for_epochs(processes[0], files / "halted", 2)
    os.kill(processes[0].pid, signal.SIGINT)
    out, err = processes[0].communicate(timeout=60)
    assert processes[0].returncode == 130
    assert "stopped and saved; the same command without --fresh goes on with halted" in out
    assert "Traceback" not in out + err
    assert (files / "halted" / CHECKPOINT).exists()
    assert not (files / "halted" / RESULT).exists()
    assert main(words) == 0
    assert (files / "halted" / WEIGHTS).read_bytes() == (files / "straight" / WEIGHTS).read_bytes()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("devices", "cases", "reduction"),
    [(2, 21, "sample"), (3, 22, "batch")],
    ids=str,
)
def test_several_processes_train_as_one(files: Path, devices: int, cases: int, reduction: str) -> None:
    """The last batch has fewer cases than there are processes."""
    write_csv(files / "odd.csv", series(cases))
    given = {"epochs": 2, "dropout": 0.0, "penalty": 1.0, "reduction": reduction, "lr": 0.01}
    alone = train_run(recipe("odd.csv", test="test.csv", **given), files / "alone")
    assert alone["train_cases"] % 8 == devices - 1
    words = ["train", "odd.csv", "--test", "test.csv", *options(**given, devices=devices), "--out", "shared"]
    out, err = call(*words, cwd=files)
    assert "Traceback" not in err
    assert out.count("run folder: shared") == 1
    rows = [read_lines(files / name / METRICS) for name in ("alone", "shared")]
    for one, many in zip(*rows, strict=True):
        for name in ("train_loss", "penalty", *PARTS, "valid_loss", "train_accuracy", "valid_accuracy"):
            assert many[name] == pytest.approx(one[name], rel=1e-5, abs=1e-5), name
    shared = read_json(files / "shared" / RESULT)
    assert shared["test_loss"] == pytest.approx(alone["test_loss"], rel=1e-5)
