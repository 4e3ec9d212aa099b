"""sites, graft, distil, restore and inspect on someone else's model: from its folder to files and back."""

import json
from pathlib import Path

import pytest
from safetensors.torch import load_file

from kernelhead.cli.__main__ import main
from tests.surgery.saved import saved_bert, text

LAYER = "tests.surgery.test_hosts:encoder_layer"


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("host")
    text(folder / "text.txt")
    return saved_bert(folder / "bert")


def said(capsys: pytest.CaptureFixture[str], *words: object) -> str:
    """What a verb that ends well prints."""
    assert main([str(word) for word in words]) == 0
    out = capsys.readouterr()
    assert out.err == ""
    return out.out


def test_from_sites_to_a_restored_host(
    bert: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data, made, taught, back = bert.parent / "text.txt", *(tmp_path / f"{name}.safetensors" for name in "abc")
    assert "BertModel: 2 attentions, 2 of them can be grafted" in said(capsys, "sites", bert)
    found = json.loads(said(capsys, "sites", bert, "--json"))
    assert [site["heads"] for site in found["sites"]] == [4, 4]
    dry = said(capsys, "graft", bert, "--rank", 3, "--where", "all", "--dry-run")
    assert "2 attentions" in dry
    assert "nothing was changed" in dry
    line = said(capsys, "graft", bert, "--rank", 3, "--where", 0, 1, "--data", data, "--out", made)
    assert "fitted" in line
    record = json.loads(
        said(
            capsys,
            "distil",
            bert,
            made,
            "--data",
            data,
            "--steps",
            3,
            "--whole-steps",
            2,
            "--batch",
            8,
            "--out",
            taught,
            "--json",
        )
    )
    assert len(record["sites"]) == 2
    assert json.loads(taught.with_suffix(".json").read_text()) == record
    said(capsys, "restore", bert, taught, "--out", back)
    host, other = load_file(bert / "model.safetensors"), load_file(back)
    assert all((host[name] == other[name]).all() for name in host)
    assert not any("kernelhead" in name for name in other)


def test_distil_shows_a_table(bert: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data, made = bert.parent / "text.txt", tmp_path / "a.safetensors"
    said(capsys, "graft", bert, "--rank", 2, "--out", made)
    words = said(
        capsys,
        "distil",
        bert,
        made,
        "--data",
        data,
        "--steps",
        1,
        "--whole-steps",
        0,
        "--batch",
        8,
        "--out",
        made,
    )
    assert "relative error" in words
    assert "encoder.layer.1.attention.self" in words


def test_inspect_reads_any_model(bert: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = bert.parent / "text.txt"
    table = said(capsys, "inspect", "spectrum", bert, data, "--cases", 4, "--plan", 0.3)
    assert "encoder.layer.1.attention.self" in table
    record = json.loads(
        said(capsys, "inspect", "spectrum", bert, data, "--cases", 4, "--plan", 0.3, "--json")
    )
    assert len(record["layers"]) == 2
    assert record["plan"]
    lines = said(capsys, "inspect", "kpca", bert, data, "--cases", 4)
    assert "encoder.layer.0.attention.self: " in lines
    assert json.loads(said(capsys, "inspect", "kpca", bert, data, "--cases", 4, "--json"))["layers"]


def test_readings_of_any_model_go_to_a_report(
    bert: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data, folder, page = bert.parent / "text.txt", tmp_path / "read", tmp_path / "page.html"
    for reading in ("spectrum", "maps", "kpca"):
        words = said(capsys, "inspect", reading, bert, data, "--cases", 4, "--out", folder)
        assert f"records in {folder}" in words
    said(capsys, "report", folder, "--out", page)
    text = page.read_text()
    assert "encoder.layer.1.attention.self" in text
    assert f"case 1 of {data}, " in said(capsys, "inspect", "maps", bert, data, "--case", 1)
    assert json.loads(said(capsys, "inspect", "maps", bert, data, "--json"))["case"] == 0
    assert 'id="maps"' in text
    assert "does not hold" in text or "cannot be told" in text or "holds" in text
    assert main(["inspect", "spectrum", str(bert), str(data), "--out", str(bert)]) == 2
    assert "holds a model, expected another folder" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["sites", "nothing"], "there is no model 'nothing'"),
        (["sites", "torch.nn:Identity"], "Identity has no attention; looked for"),
        (["graft", LAYER], "--out names a file to write"),
        (["graft", LAYER, "--to", "magic", "--dry-run"], "magic"),
        (["graft", LAYER, "--rank", "2", "--where", "7", "--dry-run"], "7"),
        (["graft", LAYER, "--rank", "2", "--data", "absent.npy", "--dry-run"], "absent.npy cannot be read"),
        (["inspect", "spectrum", LAYER], "needs something to read"),
        (["restore", LAYER, "absent.safetensors", "--out", "x.safetensors"], "absent.safetensors"),
        (["distil", LAYER, "absent.safetensors", "--data", "x.npy", "--out", "y.safetensors"], "absent"),
    ],
)
def test_what_is_wrong_is_one_sentence_and_nothing_is_written(
    words: list[str],
    sentence: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(words) == 2
    out = capsys.readouterr()
    assert out.err.startswith("kernelhead: ")
    assert out.err.count("\n") == 1
    assert sentence in out.err
    assert not [*tmp_path.iterdir()]


def test_records_say_what_was_read(bert: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "two.txt").write_text((bert.parent / "text.txt").read_text().splitlines()[0] * 2 + "\n")
    for reading in ("spectrum", "kpca"):
        words = ("inspect", reading, bert, tmp_path / "two.txt", "--length", 5)
        record = json.loads(said(capsys, *words, "--json"))
        assert (record["cases"], record["length"]) == (1, 5)
        assert "1 cases of" in said(capsys, *words)


@pytest.mark.parametrize("name", ["taught.json", "bert", "text.txt/taught.safetensors"])
def test_a_place_that_cannot_be_written_is_said_before_anything_is_done(
    name: str, bert: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made, out = tmp_path / "a.safetensors", bert.parent / name
    said(capsys, "graft", bert, "--rank", 2, "--out", made)
    assert main(["distil", str(bert), str(made), "--data", "absent.txt", "--out", str(out)]) == 2
    sentence = capsys.readouterr().err
    assert str(out) in sentence
    assert "absent.txt" not in sentence
