"""kernelhead rerank: files in, a ranked list out, figures where labels are there, one sentence where not."""

import csv
import json
from pathlib import Path

import numpy as np
import pytest
import torch

from kernelhead.cli.__main__ import main
from kernelhead.data import instance_curves
from kernelhead.training.store import save_tensors


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with labelled features to learn from, a database and queries."""
    monkeypatch.chdir(tmp_path)
    for seed, name in enumerate(("train", "database", "queries")):
        drawn = instance_curves(4, views=5, width=8, noise=0.3, seed=seed)
        ids = [f"{name}-{place}" for place in range(20)]
        np.savez(tmp_path / f"{name}.npz", x=drawn.x, ids=ids, labels=drawn.labels)
    np.save(tmp_path / "plain.npy", drawn.x[:3])
    return tmp_path


def ranked(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def said(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, object]:
    assert main(["rerank", *words, "--json"]) == 0
    record: dict[str, object] = json.loads(capsys.readouterr().out)
    return record


@pytest.mark.parametrize("method", ["first", "alpha-qe", "alpha-qe-both", "k-reciprocal", "affinity"])
def test_every_item_is_a_query_by_default(
    method: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record = said(capsys, "database.npz", "--method", method, "--k", "6", "--top", "3")
    assert (record["method"], record["queries"], record["items"]) == (method, 20, 20)
    assert 0 < record["mean_average_precision"] <= 1
    assert 0 < record["precision_at_10"] <= 1
    rows = ranked(here / "ranked.csv")
    assert len(rows) == 60
    assert [row["rank"] for row in rows[:3]] == ["1", "2", "3"]
    assert all(row["query"] != row["id"] for row in rows)


def test_a_network_is_trained_saved_and_used_again(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["database.npz", "--queries", "queries.npz", "--k", "8"]
    trained = said(
        capsys,
        *words,
        "--train",
        "train.npz",
        "--steps",
        "2",
        "--save",
        "mine.safetensors",
        "--out",
        "one.csv",
    )
    assert trained["method"] == "network"
    again = said(capsys, *words, "--model", "mine.safetensors", "--out", "two.csv")
    assert trained["mean_average_precision"] == again["mean_average_precision"]
    assert (here / "one.csv").read_text() == (here / "two.csv").read_text()
    assert len(ranked(here / "one.csv")) == 400


def test_one_item_is_the_query_and_figures_need_labels(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["rerank", "database.npz", "--query", "database-7", "--top", "2"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("1 query among 20 items by alpha-qe, mean average precision ")
    assert {row["query"] for row in ranked(here / "ranked.csv")} == {"database-7"}
    record = said(capsys, "database.npz", "--queries", "plain.npy")
    assert "mean_average_precision" not in record
    assert {row["query"] for row in ranked(here / "ranked.csv")} == {"0", "1", "2"}


def test_a_list_longer_than_the_database_is_all_of_it(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    texts = []
    for k in ("19", "999"):
        said(capsys, "database.npz", "--method", "k-reciprocal", "--k", k, "--top", "999")
        texts.append((here / "ranked.csv").read_text())
    assert texts[0] == texts[1]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--query", "cat"], "Features 'database': no item has the id 'cat'; it has 20 others"),
        (["--query", "cat", "--queries", "queries.npz"], "rerank: --query names an item of the database"),
        (["--method", "alpha"], "ranked: unknown method 'alpha', did you mean"),
        (["--method", "network"], "rerank: a network comes from --train or from --model"),
        (
            ["--train", "train.npz", "--model", "x.safetensors"],
            "rerank: a network comes from --train or from --model",
        ),
        (["--train", "plain.npy"], "rerank: plain.npy has no labels, so nothing can be learned from it"),
        (["--method", "first", "--train", "train.npz"], "rerank: first learns nothing; leave out --train"),
        (["--queries", "wide.npy"], "expanded: axis `d` is 9 in `query` but 8 in `database`"),
        (["--queries", "none.npy"], "read_features: none.npy is not a file"),
        (
            ["--queries", "twice.csv"],
            "Features 'twice': id 'a' is that of row 0 and of row 1, expected it once",
        ),
        (["--model", "none.safetensors"], "none.safetensors does not exist"),
        (["--model", "bad.safetensors"], "bad.safetensors is not a whole safetensors file"),
        (["--model", "other.safetensors"], "other.safetensors holds no re-ranker: 'reranker'"),
        (["--k", "0", "--method", "affinity"], "affinity_cosine: k is 0"),
        (["--out", "."], "rerank: . cannot be written"),
        (["--train", "train.npz", "--attention", "prim"], "layer_names: unknown attention 'prim'"),
    ],
)
def test_what_is_refused_is_one_sentence(
    words: list[str], sentence: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    np.save(here / "wide.npy", np.ones((2, 9)))
    (here / "twice.csv").write_text("id,x\na,1\na,2\n", encoding="utf-8")
    (here / "bad.safetensors").write_bytes(b"none")
    save_tensors(here / "other.safetensors", {"a": torch.zeros(1)}, {})
    assert main(["rerank", "database.npz", *words]) == 2
    err = capsys.readouterr().err
    assert err.startswith(f"kernelhead: {sentence}")
    assert err.count("\n") == 1
    assert not (here / "ranked.csv").exists()
