"""kernelhead VERB: what each verb writes, and one sentence with code 2 for everything that is wrong."""

import csv
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import kernelhead
from kernelhead.cli.__main__ import main
from kernelhead.cli.verbs import VERBS
from kernelhead.records import CONFIG, KPCA, MAPS, METRICS, REPORT, RESULT, SPECTRUM, WEIGHTS, read_json
from kernelhead.training import Recipe, load_run
from tests.training.tiny import call, options, series, start, write_csv, write_npz

FILES = {CONFIG, METRICS, RESULT, SPECTRUM, MAPS, WEIGHTS, REPORT, "checkpoint.safetensors"}
BOTH = """data = "train.csv"
test = "test.csv"
epochs = 2
width = 8
depth = 1
heads = 2
rank = 2
accelerator = "cpu"

[first]
attention = "primal"

[second]
name = "Second"
attention = "softmax"
"""


def tree(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def train(*words: object, **changes: Any) -> list[str]:
    return ["train", *map(str, words), *options(epochs=2, **changes)]


def test_train_leaves_a_run_a_table_and_a_report(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*train("train.csv", "--test", "test.csv"), "--out", "new/run"]) == 0
    assert {path.name for path in (here / "new" / "run").iterdir()} == FILES
    out = capsys.readouterr().out
    assert "primal" in out
    assert "validation accuracy" in out
    assert "run folder: new/run, report: new/run/report.html" in out
    for heading in ("test", "validation", "parameters", "s/epoch", "peak MiB"):
        assert heading in out
    assert (here / "new" / "run" / REPORT).read_text(encoding="utf-8").startswith("<!doctype html>")


def test_train_has_a_folder_by_default(here: Path) -> None:
    assert main(train("train.csv", attention="softmax,primal", depth=2)) == 0
    assert (here / "runs" / "train-softmax-primal" / RESULT).exists()


def test_train_reads_an_archive(here: Path) -> None:
    write_npz(here / "both.npz", train=series(24), test=series(10, seed=1))
    assert main([*train("both.npz"), "--out", "npz"]) == 0
    assert read_json(here / "npz" / RESULT)["test_cases"] == 10


def test_train_reads_names_in_the_root(here: Path) -> None:
    (here / "root" / "uea").mkdir(parents=True)
    write_npz(here / "root" / "uea" / "Mine.npz", train=series(24), test=series(10, seed=1))
    assert main([*train("mine"), "--root", "root", "--out", "named"]) == 0
    assert read_json(here / "named" / RESULT)["data"] == "Mine"
    assert main(["evaluate", "named", "--root", "root"]) == 0


def test_train_takes_the_configuration_of_a_run(here: Path) -> None:
    assert main(["train", "--config", f"run/{CONFIG}", "--out", "again"]) == 0
    assert read_json(here / "again" / CONFIG) == read_json(here / "run" / CONFIG)
    assert (here / "again" / WEIGHTS).read_bytes() == (here / "run" / WEIGHTS).read_bytes()


def test_a_finished_run_is_kept_and_fresh_trains(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = [*train("train.csv", "--test", "test.csv"), "--out", "run"]
    assert read_json(here / "run" / CONFIG)["data"] == "train.csv"

    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("trained again")

    monkeypatch.setattr("kernelhead.training.runs.fit", refuse)
    before = tree(here)
    assert main(words) == 0
    assert tree(here).keys() == before.keys()
    with pytest.raises(AssertionError, match="trained again"):
        main([*words, "--fresh"])


def test_a_changed_recipe_is_refused(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = tree(here)
    assert main([*train("train.csv", "--test", "test.csv", lr=0.5), "--out", "run"]) == 2
    assert "holds a run of another recipe (lr 0.001 -> 0.5)" in capsys.readouterr().err
    assert tree(here) == before


def test_evaluate_says_accuracy_and_loss(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["evaluate", "run"]) == 0
    accuracy = read_json(here / "run" / RESULT)["test_accuracy"]
    assert f"test, 12 cases: accuracy {accuracy:.2%}, cross-entropy" in capsys.readouterr().out


def test_evaluate_prints_json_and_nothing_else(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = read_json(here / "run" / RESULT)
    assert main(["evaluate", "run", "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record == {
        "data": "test",
        "split": "test",
        "cases": 12,
        "accuracy": result["test_accuracy"],
        "loss": result["test_loss"],
    }
    assert main(["evaluate", "run", "train.csv", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["cases"] == 24


def write_ts(path: Path) -> Path:
    held = series(5, seed=2)
    lines = ["@problemName new", "@timeStamps false", "@missing false", "@univariate false", "@dimensions 2"]
    lines += ["@equalLength false", "@classLabel true 0 1", "@data"]
    for case, label in zip(held.cases, held.labels or (), strict=True):
        lines.append(":".join(",".join(map(repr, map(float, channel))) for channel in case.T) + f":{label}")
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


@pytest.mark.parametrize("kind", ["csv", "npz", "ts"])
def test_predict_writes_labels_and_probabilities(
    here: Path, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    held = series(5, seed=2)
    if kind == "csv":
        write_csv(here / "new.csv", replace(held, ids=tuple("vwxyz")), labels=False)
    elif kind == "npz":
        write_npz(here / "new.npz", whole=replace(held, labels=None))
    else:
        write_ts(here / "new.ts")
    assert main(["predict", "run", f"new.{kind}", "--out", "out/p.csv"]) == 0
    assert "5 predictions in out/p.csv" in capsys.readouterr().out
    with (here / "out" / "p.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == ["case", "label", "probability_0", "probability_1"]
    assert [row["case"] for row in rows] == list("vwxyz" if kind == "csv" else "01234")
    expected = load_run(here / "run").scores(held).double().softmax(-1).numpy()
    found = np.array([[float(row["probability_0"]), float(row["probability_1"])] for row in rows])
    assert np.allclose(found, expected, rtol=0, atol=1e-6)
    assert [row["label"] for row in rows] == [str(place) for place in expected.argmax(1)]


def test_predict_has_a_file_by_default(here: Path) -> None:
    assert main(["predict", "run", "test.csv"]) == 0
    assert (here / "predictions.csv").exists()


def test_inspect_says_the_spectrum(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", "spectrum", "run", "--cases", "3"]) == 0
    out = capsys.readouterr().out
    assert "3 cases of train" in out
    assert "blocks.0" in out
    assert read_json(here / "run" / SPECTRUM)["cases"] == 3


def test_inspect_shows_whole_paths(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", "spectrum", "run"]) == 0
    out = capsys.readouterr().out
    assert "blocks.0.attention" in out
    assert "PrimalAttention" in out


def test_inspect_prints_json_and_nothing_else(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", "spectrum", "run", "test.csv", "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record == read_json(here / "run" / SPECTRUM)
    assert record["cases"] == 12
    assert record["layers"][0]["path"] == "blocks.0.attention"


def test_inspect_draws_maps(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = read_json(here / "run" / MAPS)
    assert (before["data"], before["case"], len(before["layers"])) == ("train", 0, 1)
    assert main(["inspect", "maps", "run", "test.csv", "--case", "3"]) == 0
    out = capsys.readouterr().out
    assert "blocks.0.attention" in out
    assert "case 3 of test; run/maps.json is what `report` draws" in out
    assert main(["inspect", "maps", "run", "test.csv", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == read_json(here / "run" / MAPS)
    assert main(["inspect", "maps", "run", "test.csv", "--case", "99"]) == 2
    assert "maps: case is 99, expected one of 12 of test" in capsys.readouterr().err


def test_inspect_says_whether_attention_is_a_kernel_pca(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*train("train.csv", attention="primal+", depth=2), "--out", "plus"]) == 0
    capsys.readouterr()
    assert main(["inspect", "kpca", "plus", "--cases", "6", "--seed", "3"]) == 0
    out = capsys.readouterr().out
    assert "blocks.0.attention: does not hold: explained 0." in out
    assert "blocks.1.attention: not read, for PrimalAttention has no softmax pattern" in out
    assert "6 cases of train, at most" in out
    assert "baselines from seed 3" in out
    for word in ("permuted", "gaussian", "redrawn", "explained", "bessel rate", "gamma absolute"):
        assert word in out
    record = read_json(here / "plus" / KPCA)
    assert (record["cases"], record["seed"], len(record["layers"])) == (6, 3, 1)
    assert main(["report", "plus", "--out", "page.html"]) == 0
    assert "Kernel PCA of attention" in (here / "page.html").read_text(encoding="utf-8")


def test_inspect_prints_a_kernel_pca_as_json(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*train("train.csv", attention="softmax"), "--out", "soft"]) == 0
    capsys.readouterr()
    assert main(["inspect", "kpca", "soft", "test.csv", "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record == read_json(here / "soft" / KPCA)
    assert record["layers"][0]["verdict"] in ("does not hold", "holds in part")
    assert main([*train("train.csv", attention="softmax"), "--out", "soft", "--fresh"]) == 0
    assert not (here / "soft" / KPCA).exists()


def test_report_writes_one_page_about_several_runs(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*train("train.csv", attention="softmax"), "--out", "other"]) == 0
    assert main(["report", "run", "other", "--out", "page.html", "--title", "A <page>"]) == 0
    assert "report: page.html" in capsys.readouterr().out
    page = (here / "page.html").read_text(encoding="utf-8")
    assert "A &lt;page&gt;" in page
    assert "primal" in page
    assert "softmax" in page


@pytest.mark.slow
def test_a_recipe_file_gives_one_table_and_one_report(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (here / "both.toml").write_text(BOTH, encoding="utf-8")
    assert main(["train", "--recipe", "both.toml", "--epochs", "1", "--out", "all"]) == 0
    out, err = capfd.readouterr()
    assert out.count("peak MiB") == 1
    assert "first" in out
    assert "Second" in out
    assert "report: all/report.html" in out
    assert "Traceback" not in err
    page = (here / "all" / REPORT).read_text(encoding="utf-8")
    assert "Second" in page
    for name, attention in (("first", "primal"), ("second", "softmax")):
        config = read_json(here / "all" / name / CONFIG)
        assert (config["attention"], config["epochs"]) == (attention, 1)
        assert read_json(here / "all" / name / RESULT)["test_cases"] == 12


@pytest.mark.slow
def test_a_wrong_run_stops_a_recipe_file(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (here / "both.toml").write_text(BOTH.replace('"primal"', '"prmal"'), encoding="utf-8")
    assert main(["train", "--recipe", "both.toml", "--out", "all"]) == 2
    out, err = capfd.readouterr()
    assert "unknown attention 'prmal', did you mean 'primal'" in err
    assert "Traceback" not in out + err
    assert not (here / "all" / "second").exists()
    assert not (here / "all" / REPORT).exists()


def test_only_one_run_of_a_recipe_file(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "both.toml").write_text(BOTH, encoding="utf-8")
    assert main(["train", "--recipe", "both.toml", "--only", "second", "--out", "all"]) == 0
    assert {path.name for path in (here / "all").iterdir()} == {"second"}
    assert main(["train", "--recipe", "both.toml", "--only", "secnd", "--out", "all"]) == 2
    assert (
        "both.toml: unknown run 'secnd', did you mean 'second'? Known: first, second"
        in capsys.readouterr().err
    )


def one_sentence(capsys: pytest.CaptureFixture[str], words: list[str], sentence: str) -> None:
    """The verb ends with code 2 and one line on the error stream, of these words."""
    assert main(words) == 2
    said = capsys.readouterr()
    assert said.err.startswith("kernelhead: ")
    assert said.err.count("\n") == 1
    assert sentence in said.err
    assert said.out == ""


RAGGED = "case,label,a,b\n1,x,1,2\n1,x,1\n"
HOLES = "case,label,a,b\n1,x,1,2\n2,y,1,nan\n"
SINGLE = "case,label,a,b\n1,x,1,2\n2,x,1,3\n"
BARE = "case,c0,c1\n1,1,2\n2,1,3\n"


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (train("none.csv"), "none.csv does not exist"),
        (train("folder/none"), "folder/none does not exist"),
        (train("ragged.csv"), "ragged.csv, line 3: 3 fields, expected 4 as in the header"),
        (train("holes.csv"), "holes.csv, line 3: column 'b' holds 'nan', expected a finite number"),
        (train("single.csv"), "single: all 2 cases are of class 'x', expected two classes"),
        (train("bare.csv"), "bare: has no labels, so nothing can be learned from it"),
        (train("JapaneseVowel"), "unknown data set 'JapaneseVowel', did you mean 'JapaneseVowels'?"),
        (train("train.csv", attention="prmal"), "unknown attention 'prmal', did you mean 'primal'?"),
        (train("train.csv", norm="prre"), "unknown norm 'prre', did you mean 'pre'?"),
        (train("train.csv", pooling="men"), "unknown pooling 'men', did you mean 'mean'?"),
        (train("train.csv", optimiser="radm"), "unknown optimiser 'radm', did you mean 'radam'?"),
        (train("train.csv", reduction="smple"), "unknown reduction 'smple', did you mean 'sample'?"),
        (train("train.csv", heads=3), "width 8 does not split into 3 heads"),
        (train("train.csv", dropout=1), "dropout is 1.0, expected from 0 to below 1"),
        (train("train.csv", validation=1.5), "fraction is 1.5, expected a number between 0 and 1"),
        (train("train.csv", accelerator="none"), "accelerator"),
        (train("mine", "--root", "nowhere"), "the data root nowhere is not a folder"),
        (train(), "no entry `data`, expected the name of a data set or a file"),
        (["train", "--recipe", "none.toml"], "none.toml does not exist"),
        (["train", "--recipe", "train.csv"], "train.csv is not a readable TOML file"),
        (["evaluate", "nowhere"], "nowhere holds no weights.safetensors"),
        (["evaluate", "broken"], "is not a whole safetensors file"),
        (["evaluate", "run", "bare.csv"], "bare: has no labels"),
        (["evaluate", "run", "--split", "tset"], "unknown split 'tset', did you mean 'test'?"),
        (["predict", "nowhere", "train.csv"], "nowhere holds no weights.safetensors"),
        (["predict", "broken", "train.csv"], "is not a whole safetensors file"),
        (["predict", "run", "none.csv"], "none.csv does not exist"),
        (["predict", "run", "wide.csv"], "wide: has 3 channels, but the model was trained on 2"),
        (["predict", "run", "holes.csv"], "expected a finite number"),
        (["predict", "run", "test.csv", "--out", "train.csv/p.csv"], "cannot write train.csv/p.csv"),
        (["inspect", "spectrm", "run"], "unknown reading 'spectrm', did you mean 'spectrum'?"),
        (["inspect", "spectrum", "nowhere"], "nowhere holds no weights.safetensors"),
        (["inspect", "spectrum", "broken"], "is not a whole safetensors file"),
        (["inspect", "spectrum", "run", "--cases", "0"], "expected"),
        (
            ["inspect", "kpca", "run"],
            "no softmax attention to read (blocks.0.attention: PrimalAttention has no",
        ),
        (["inspect", "kpca", "run", "--cases", "0"], "alignments: cases is 0, expected"),
        (["report", "nowhere"], "nowhere is not a run folder: it has no config.json"),
        (["report", "run", "--out", "train.csv/r.html"], "cannot write train.csv/r.html"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else value.split(",")[0],
)
def test_what_is_wrong_is_one_sentence_and_nothing_is_written(
    here: Path, words: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, text in (("ragged", RAGGED), ("holes", HOLES), ("single", SINGLE), ("bare", BARE)):
        (here / f"{name}.csv").write_text(text, encoding="utf-8")
    write_csv(here / "wide.csv", series(4, channels=3), labels=False)
    shutil.copytree(here / "run", here / "broken")
    whole = (here / "run" / WEIGHTS).read_bytes()
    (here / "broken" / WEIGHTS).write_bytes(whole[: len(whole) // 2])
    before = tree(here)
    one_sentence(capsys, [*words, "--out", "new"] if words[0] == "train" else words, sentence)
    assert tree(here) == before


def test_a_corrected_command_goes_on(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*train("train.csv", attention="prmal"), "--out", "new"]) == 2
    assert main([*train("train.csv", attention="primal"), "--out", "new"]) == 0


def test_a_folder_that_cannot_be_written_is_one_sentence(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    one_sentence(
        capsys, [*train("train.csv"), "--out", "test.csv/run"], "cannot write to the run folder test.csv/run"
    )

    def refuse(*_: Any, **__: Any) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("kernelhead.records.NamedTemporaryFile", refuse)
    one_sentence(capsys, [*train("train.csv"), "--out", "new"], "Permission denied")


def test_a_loss_that_is_not_finite_is_a_sentence(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for batch in (8, 64):
        assert main([*train("train.csv", lr=1e30, batch=batch), "--out", f"new{batch}"]) == 2
        assert "a smaller lr than 1e+30 may help" in capsys.readouterr().err


def test_other_system_errors_are_a_sentence(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise OSError(5, "Input/output error", "disk")

    monkeypatch.setattr("kernelhead.cli.evaluate.load_run", refuse)
    one_sentence(capsys, ["evaluate", "run"], "disk: Input/output error")


def test_a_broken_checkpoint_is_one_sentence(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "run" / RESULT).unlink()
    (here / "run" / "checkpoint.safetensors").write_bytes(b"half")
    words = [*train("train.csv", "--test", "test.csv"), "--out", "run"]
    one_sentence(capsys, words, "checkpoint.safetensors is not a whole safetensors file")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ([], "kernelhead: expected a verb, one of train, "),
        (["trian"], "unknown verb 'trian', did you mean 'train'?"),
        (["train", "train.csv", "--widht", "3"], "train: unrecognized arguments: --widht 3; "),
        (["train", "train.csv", "--width", "wide"], "train: --width is 'wide', expected a whole number; "),
        (["train", "train.csv", "--lr", "fast"], "train: --lr is 'fast', expected a number; "),
        (["train", "train.csv", "--lr"], "train: argument --lr: expected one argument; "),
        (["graft"], "graft: the following arguments are required: model; "),
    ],
    ids=str,
)  # fmt: skip
def test_words_that_do_not_parse_get_one_sentence(
    words: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    one_sentence(capsys, words, sentence)


def test_a_missing_package_names_its_extra(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "jsonargparse", None)
    monkeypatch.delitem(sys.modules, "kernelhead.cli.verbs", raising=False)
    assert main(["train"]) == 2
    assert 'needs jsonargparse, which is not installed; run: pip install "kernelhead[cli]"' in (
        capsys.readouterr().err
    )


def test_ctrl_c_outside_training_is_code_130(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def press(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("kernelhead.cli.evaluate.load_run", press)
    assert main(["evaluate", "run"]) == 130


def said_help(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    with pytest.raises(SystemExit) as caught:
        main([*words, "--help"])
    assert caught.value.code == 0
    return capsys.readouterr().out


def test_help_names_every_verb(capsys: pytest.CaptureFixture[str]) -> None:
    text = said_help(capsys)
    assert all(verb in text for verb in VERBS)


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_has_help_with_an_example(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = said_help(capsys, verb)
    _, _, examples = text.partition("\nexample")
    assert f"kernelhead {verb} " in f"{examples} ".replace("\n", " ")


@pytest.mark.parametrize("verb", VERBS)
def test_help_shows_places_by_a_readable_type(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = " ".join(said_help(capsys, verb).split())
    assert "<class" not in text
    assert "Path" not in text.replace("Pathfinder", "")
    surgery = ("sites", "graft", "distil", "restore")
    assert ("type: FOLDER" in text) != (verb in (*surgery, "rerank", "plan", "doctor", "completion"))
    assert verb not in ("train", "predict", "report", "reproduce", "rerank", *surgery) or "type: FILE" in text


def test_help_says_every_option_of_a_recipe(capsys: pytest.CaptureFixture[str]) -> None:
    text = said_help(capsys, "train")
    assert all(f"--{field.name}" in text for field in fields(Recipe) if field.name != "data")
    assert "weight of the KSVD penalty" in text


def test_reproduce_keeps_policies_where_a_field_has_such(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    recipes, kept = Path(__file__).parents[2] / "recipes", []
    words = ["--recipe", str(recipes / "lra.toml"), "--out", str(tmp_path), "--keep", str(tmp_path / "kept")]
    assert main(["reproduce", "lra", *words]) == 2
    assert "reproduce: jobs of lra keep no weights, expected one of: rl" in capsys.readouterr().err
    assert [*tmp_path.iterdir()] == []

    def note(field: str, jobs: Any, *, keep: Path, **_: Any) -> list[Any]:
        kept.append(keep)
        return []

    monkeypatch.setattr("kernelhead.cli.reproduce.reproduce", note)
    words[1] = str(recipes / "rl.toml")
    assert main(["reproduce", "rl", *words]) == 0
    assert kept == [tmp_path / "kept"]


def test_the_version_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--version"])
    assert kernelhead.__version__ in capsys.readouterr().out


def test_the_package_is_the_command_too(tmp_path: Path) -> None:
    asked = [sys.executable, "-m", "kernelhead", "plan", "--params", "many"]
    done = subprocess.run(asked, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 2
    assert done.stderr.startswith("kernelhead: plan: ")


def test_the_process_ends_with_the_same_words_and_code(here: Path) -> None:
    out, err = call("evaluate", "run", "--json", cwd=here)
    assert json.loads(out)["cases"] == 12
    assert err == ""


@pytest.fixture
def processes() -> Iterator[list["subprocess.Popen[str]"]]:
    """Processes that do not outlive their test."""
    begun: list[subprocess.Popen[str]] = []
    yield begun
    for process in begun:
        if process.poll() is None:
            process.kill()
        process.communicate()


@pytest.mark.slow
def test_ctrl_c_in_a_recipe_file_saves_and_stops(
    here: Path, processes: list["subprocess.Popen[str]"]
) -> None:
    (here / "both.toml").write_text(BOTH, encoding="utf-8")
    # So wide that a step takes a while: the run must be given the time to end it and to save.
    words = ["--epochs", 99, "--width", 768, "--depth", 4, "--batch", 20, "--out", "all"]
    processes.append(start("train", "--recipe", "both.toml", *words, cwd=here))
    metrics, limit = here / "all" / "first" / METRICS, time.monotonic() + 90
    while not metrics.exists() and time.monotonic() < limit:
        time.sleep(0.01)
    os.killpg(processes[0].pid, signal.SIGINT)  # as a terminal does
    out, err = processes[0].communicate(timeout=60)
    assert processes[0].returncode == 130
    assert "Traceback" not in out + err
    assert not (here / "all" / "second").exists()
    assert not (here / "all" / "first" / RESULT).exists()
    assert "stopped and saved" in out


def test_ctrl_c_while_packages_are_imported_is_code_130(monkeypatch: pytest.MonkeyPatch) -> None:
    def press(name: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("kernelhead.cli.verbs.import_module", press)
    try:
        code = main(["evaluate", "run"])
    except KeyboardInterrupt:
        pytest.fail("a traceback")  # pytest itself would take it for a Ctrl-C
    assert code == 130


def test_columns_are_found_by_name(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = list(csv.reader((here / "test.csv").read_text(encoding="utf-8").splitlines()))
    place = [rows[0].index(name) for name in ("case", "time", "c1", "c0")]
    text = "\n".join(",".join(row[i] for i in place) for row in rows) + "\n"
    (here / "swapped.csv").write_text(text, encoding="utf-8")
    for name in ("test", "swapped"):
        assert main(["predict", "run", f"{name}.csv", "--out", f"{name}.out"]) == 0
    assert (here / "test.out").read_text() == (here / "swapped.out").read_text()
    capsys.readouterr()
    (here / "other.csv").write_text(text.replace("c1,c0", "up,down"), encoding="utf-8")
    one_sentence(capsys, ["predict", "run", "other.csv"], "other: has the channels up, down, expected c0, c1")


@pytest.mark.parametrize("name", ["[/b]", "[primal]"])
def test_a_name_with_brackets_is_shown_as_it_is(
    here: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    assert main(["train", "train.csv", *options(epochs=1), "--name", name, "--out", "brackets"]) == 0
    assert name in capsys.readouterr().out


def test_a_precision_of_64_bits_runs_to_the_end(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["train", "train.csv", "--test", "test.csv", *options(epochs=1), "--precision", "64-true"]
    assert main([*words, "--out", "wide"]) == 0
    result = read_json(here / "wide" / RESULT)
    assert (here / "wide" / SPECTRUM).exists()
    capsys.readouterr()
    assert main(["evaluate", "wide", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["accuracy"] == result["test_accuracy"]


def test_a_bad_run_of_a_recipe_is_found_before_any_is_trained(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "bad.toml").write_text(BOTH + "heads = 3\n", encoding="utf-8")
    one_sentence(
        capsys, ["train", "--recipe", "bad.toml", "--out", "none"], "width 8 does not split into 3 heads"
    )
    assert not (here / "none").exists()


def test_a_result_that_is_kept_is_said_to_be(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "train.csv", "--test", "test.csv", *options(epochs=2), "--out", "run"]) == 0
    assert "and is kept as it is; --fresh trains it anew" in capsys.readouterr().out
