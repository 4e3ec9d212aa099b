"""kernelhead graph on runs of series and events, on a saved host, on a matrix, and what it refuses."""

import json
from pathlib import Path

import numpy as np
import pytest

from kernelhead.cli.__main__ import main
from kernelhead.data import LinearModel
from kernelhead.records import CONFIG, DOT, GRAPH, read_json
from tests.surgery.saved import saved_bert, text
from tests.training.tiny_events import drawn, write

CHAIN = LinearModel.of([(0, 1, 0.8), (1, 2, 0.8), (2, 3, 0.8)]).attention


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("KERNELHEAD_DATA", raising=False)
    np.save("chain.npy", CHAIN)
    np.save("heads.npy", np.stack([CHAIN, np.full((4, 4), 0.25)]))
    return tmp_path


def test_a_matrix_to_json_dots_and_a_page(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["graph", "chain.npy", "--n", "768", "--out", "found"]) == 0
    said = capsys.readouterr().out
    assert "0 o-o 1  1 o-o 2  2 o-o 3" in said
    assert "chain, 4 of 4 points, n = 768, alpha = 0.01; graph.json and graph.dot in found" in said
    assert {path.name for path in (here / "found").iterdir()} == {CONFIG, GRAPH, DOT}
    assert (here / "found" / DOT).read_text().count("->") == 3
    record = read_json(here / "found" / GRAPH)
    assert record["heads"][0]["shared"].keys() == {"attention", "correlation", "random"}
    assert main(["graph", "heads.npy", "--n", "64", "--out", "flat"]) == 0
    assert "head 1: correlations have condition number" in capsys.readouterr().out
    assert main(["graph", "heads.npy", "--n", "64", "--out", "found"]) == 2
    assert "graph: found holds records of chain.npy, expected another folder" in capsys.readouterr().err
    assert main(["report", "found", "flat", "--out", "page.html"]) == 0
    page = (here / "page.html").read_text(encoding="utf-8")
    assert page.count("Graph of causes. Head 0") == 2
    assert "Head 1: no graph, for correlations have" in page


def test_a_run_on_series_is_read(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rng = np.random.default_rng(0)
    np.savez("series.npz", x=rng.normal(size=(12, 7, 2)).astype("float32"), y=np.arange(12) % 2)
    small = ["--width", "8", "--heads", "2", "--epochs", "1", "--accelerator", "cpu", "--out", "run"]
    assert main(["train", "series.npz", "--attention", "softmax", "--pooling", "cls", *small]) == 0
    capsys.readouterr()
    words = ["graph", "run", "--case", "3", "--head", "mean", "--covariance"]
    assert main([*words, "--ridge", "0.01", "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record == read_json(here / "run" / GRAPH)
    assert (record["path"], record["case"], record["points"], record["n"]) == ("blocks.1.attention", 3, 8, 8)
    assert record["heads"][0]["names"] == ["cls", *(f"t{place}" for place in range(7))]
    assert main(words) == 0  # eight points, but seven free coordinates
    assert "mean of heads: correlations have condition number" in capsys.readouterr().out
    assert main(["graph", "run", "--most", "4", "--head", "1", "--ridge", "0.01"]) == 0
    assert "4 of 8 points" in capsys.readouterr().out
    assert main(["graph", "run", "--case", "12"]) == 2
    assert "case is 12, expected one of 12 of series" in capsys.readouterr().err


def test_a_run_on_events_is_read(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(here / "train.csv", drawn())
    small = [
        "--width",
        "8",
        "--heads",
        "2",
        "--epochs",
        "1",
        "--events.time_width",
        "8",
        "--accelerator",
        "cpu",
    ]
    assert main(["train", "train.csv", *small, "--out", "run"]) == 0
    assert main(["graph", "run", "--head", "0", "--ridge", "0.01", "--nodes", "0,1,question"]) == 0
    assert "blocks.0.attention, 3 of" in capsys.readouterr().out
    assert read_json(here / "run" / GRAPH)["heads"][0]["names"][-1] == "question"
    assert main(["graph", "run", "--case", "999"]) == 2
    assert "case is 999, expected one of" in capsys.readouterr().err


def test_a_saved_host_and_a_text_are_read(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    saved_bert(here / "bert")
    text(here / "words.txt")
    words = ["graph", "bert", "words.txt", "--case", "1", "--ridge", "0.001", "--out", "found"]
    assert main(words) == 0
    assert "graph.json and graph.dot in found" in capsys.readouterr().out
    heads = read_json(here / "found" / GRAPH)["heads"]
    assert len(heads) == 4
    assert "[CLS]" not in heads[0]["names"]
    assert {"the@1", "dog"} < {*heads[0]["names"]}
    assert main([*words, "--nodes", "dog,sat,tree", "--head", "0", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["heads"][0]["names"] == ["dog", "sat", "tree"]
    assert main(["graph", "bert"]) == 2
    assert "bert needs something to read: a text, .npy or .npz file" in capsys.readouterr().err
    assert main(["graph", "bert", "words.txt", "--out", "bert"]) == 2
    assert "bert holds a model, expected another folder" in capsys.readouterr().err
    assert main(["graph", "bert", "words.txt", "--case", "40"]) == 2
    assert "case is 40, expected one of 40 of words.txt" in capsys.readouterr().err
    ids = np.array([[2, 5, 7, 10, 3]])
    np.savez(here / "ids.npz", input_ids=ids, attention_mask=np.ones_like(ids))
    assert main(["graph", "bert", "ids.npz", "--head", "mean", "--ridge", "0.001"]) == 0
    assert "5 of 5 points" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["chain.npy"], "the width of 'chain' is not known; give n, the samples"),
        (["missing.npy"], "missing.npy cannot be read: No such file or directory\n"),
        (["chain.npy", "--n", "64", "--head", "best"], "--head has 'best', which is neither a number nor"),
        (["chain.npy", "--n", "64", "--head", "1"], "head is 1, expected 'each', 'mean' or one of 1"),
        (["chain.npy", "--n", "64", "--nodes", "0,x"], "--nodes has 'x', which is neither a number nor"),
        (["chain.npy", "--n", "64", "--nodes", "0,9"], "nodes are [0, 9], expected two or more different"),
        (["chain.npy", "--n", "64", "--method", "ges"], "unknown method 'ges'"),
        (["vector.npy", "--n", "64"], "vector.npy has shape (3,), expected (n n) or (h n n)"),
        (["nan.npy", "--n", "64"], "the pattern (2, 2) holds NaN or infinity"),
        (["nowhere"], "nowhere holds no weights.safetensors"),
    ],
)
def test_what_cannot_be_done_is_one_sentence(
    words: list[str], sentence: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    np.save("vector.npy", np.ones(3))
    np.save("nan.npy", np.full((2, 2), np.nan))
    assert main(["graph", *words]) == 2
    assert sentence in capsys.readouterr().err
