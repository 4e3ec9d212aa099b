"""What the command line says: JSON alone on its stream, codes, --quiet and --verbose; over all verbs."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kernelhead.cli.__main__ import main
from kernelhead.cli.verbs import VERBS, help_of, load, parser_of
from kernelhead.records import write_json
from tests.training.tiny import options

ROOT = Path(__file__).parents[2]
MODEL = "tests.cli.test_voice:model"
WORDS: dict[str, list[str]] = {
    "train": ["train", "train.csv", "--test", "test.csv", *options(epochs=1), "--out", "new"],
    "evaluate": ["evaluate", "run"],
    "predict": ["predict", "run", "test.csv"],
    "inspect": ["inspect", "spectrum", "run"],
    "graph": ["graph", "run", "--most", "4"],
    "sites": ["sites", MODEL],
    "graft": ["graft", MODEL, "--to", "softmax", "--dry-run"],
    "distil": ["distil", MODEL, "graft.safetensors", "--data", "x.npy", "--out", "taught.safetensors"],
    "restore": ["restore", MODEL, "graft.safetensors", "--out", "host.safetensors"],
    "rerank": ["rerank", "features.npz", "--k", "4"],
    "plan": ["plan", "--params", "85M"],
    "report": ["report", "run"],
    "bench": ["bench", "--list"],
    "reproduce": ["reproduce", "uea", "--list", "--only", "JapaneseVowels", "--seeds", "1"],
    "doctor": ["doctor"],
    "completion": ["completion", "fish"],
}
NO_JSON = {"train", "report", "completion"}  # they write: a run folder, a page, a script


def model() -> Any:
    """A small host."""
    import torch

    from kernelhead.rng import seeded

    with seeded(0):
        return torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval()


@pytest.fixture
def work(here: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder, with all that WORDS name."""
    rows = np.random.default_rng(0).normal(size=(12, 5)).astype(np.float32)
    np.savez(here / "features.npz", x=rows, labels=np.arange(12) % 3)
    np.save(here / "x.npy", rows[None, :, :1].repeat(8, -1).repeat(6, 0))
    return here


def test_every_verb_is_asked() -> None:
    assert tuple(WORDS) == VERBS


@pytest.mark.parametrize("verb", VERBS)
def test_help_is_read_as_it_is_imported(verb: str) -> None:
    assert help_of(verb) == load(verb).HELP


def takes(verb: str, option: str) -> bool:
    parser = parser_of([verb])
    actions = getattr(parser._subcommands_action, "_name_parser_map", {})[verb]._actions
    return any(option in action.option_strings for action in actions)


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_that_reads_has_json(verb: str) -> None:
    assert takes(verb, "--json") or verb in NO_JSON
    assert takes(verb, "--quiet")
    assert takes(verb, "--verbose")


@pytest.mark.parametrize("reading", [[], ["kpca"], ["flow", "--groups", "first=0:4", "rest=4:"]], ids=str)
def test_every_reading_is_json_alone(
    work: Path, reading: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    if reading:
        assert main(["train", "train.csv", *options(epochs=1, attention="softmax"), "--out", "soft"]) == 0
        capsys.readouterr()
    words = ["inspect", *reading[:1], "soft", *reading[1:]] if reading else WORDS["inspect"]
    assert main([*words, "--json"]) == 0
    said = capsys.readouterr()
    assert isinstance(json.loads(said.out), dict)
    assert said.err == ""


@pytest.mark.parametrize(
    "verb", ["evaluate", "predict", "graph", "sites", "graft", "rerank", "plan", "doctor", "reproduce"]
)
def test_json_is_alone_on_its_stream(
    work: Path, verb: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    if verb == "reproduce":
        monkeypatch.chdir(ROOT)
    assert main([*WORDS[verb], "--json"]) == 0
    said = capsys.readouterr()
    assert isinstance(json.loads(said.out), dict)
    assert said.err == ""


def test_distil_and_restore_say_json(work: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["graft", MODEL, "--rank", "2", "--data", "x.npy", "--out", "graft.safetensors"]
    assert main([*words, "--json"]) == 0
    json.loads(capsys.readouterr().out)
    assert main([*WORDS["distil"], "--steps", "1", "--whole-steps", "0", "--batch", "2", "--json"]) == 0
    json.loads(capsys.readouterr().out)
    assert main([*WORDS["restore"], "--json"]) == 0
    json.loads(capsys.readouterr().out)


def test_predictions_are_counted_in_json(work: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*WORDS["predict"], "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["out"] == "predictions.csv"
    assert record["cases"] == sum(record["labels"].values()) == 12
    assert list(record["labels"]) == ["0", "1"]


def test_the_jobs_of_a_field_as_json(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(ROOT)
    assert main([*WORDS["reproduce"], "--out", str(tmp_path), "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["field"] == "uea"
    assert {job["status"] for job in record["jobs"]} == {"to do"}
    assert main([*WORDS["reproduce"], "--out", str(tmp_path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[-1] for line in lines] == [job["job"] for job in record["jobs"]]


@pytest.mark.parametrize("failing", [False, True])
def test_jobs_that_failed_are_code_1(
    failing: bool, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    row = {"data": "d", "variant": "v", "protocol": "clean", "seed": 0, "seconds": 2.0}
    row |= {"status": "failed", "error": "no"} if failing else {"status": "done", "error": None}

    def note(field: str, jobs: Any, *, tell: Callable[[Any], None], **_: Any) -> list[Any]:
        tell({**row, "figures": {"accuracy": 0.5}})
        return [row]

    monkeypatch.chdir(ROOT)
    monkeypatch.setattr("kernelhead.cli.reproduce.reproduce", note)
    words = ["reproduce", "uea", "--only", "JapaneseVowels", "--seeds", "1"]
    assert main(words) == int(failing)
    said = capsys.readouterr().out
    assert ("d, v, clean, seed 0: no (2.0 s)" if failing else "accuracy 0.5 (2.0 s)") in said
    assert main([*words, "--json"]) == int(failing)
    record = json.loads(capsys.readouterr().out)
    assert (record["jobs"], record["done"]) == (1, int(not failing))


def test_numbers_that_json_has_not_are_null(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kernelhead.cli.evaluate._of_series", lambda _: ("d", 1, 0.5, float("inf")))
    assert main(["evaluate", "run", "--json"]) == 0
    assert json.loads(capsys.readouterr().out, parse_constant=pytest.fail)["loss"] is None


ENDS: dict[str, tuple[Any, int]] = {
    "done": (0, 0),
    "a check failed": (1, 1),
    "a system error": (OSError(5, "Input/output error", "disk"), 2),
    "a letter": (UnicodeEncodeError("utf-8", "a\udcff", 1, 2, "surrogates not allowed"), 2),
    "Ctrl-C": (KeyboardInterrupt(), 130),
    "nobody reads": (BrokenPipeError(32, "Broken pipe"), 141),
}


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_ends_with_the_same_codes(
    verb: str, end: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    what, code = ENDS[end]

    def ended(*_: Any) -> int:
        if isinstance(what, BaseException):
            raise what
        return int(what)

    monkeypatch.setattr(load(verb), "run", ended)
    monkeypatch.setattr("os.dup2", lambda *_: None)  # pytest keeps its output
    assert main(WORDS[verb]) == code
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.count("\n") == int(code == 2)


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_refuses_in_one_sentence(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*WORDS[verb], "--nosuch"]) == 2
    said = capsys.readouterr()
    assert said.err.startswith(f"kernelhead: {verb}: unrecognized arguments: --nosuch; kernelhead {verb} --h")
    assert (said.err.count("\n"), said.out) == (1, "")


def test_an_option_before_the_verb_is_told_its_place(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--quiet", "evaluate", "run"]) == 2
    assert "--quiet comes after the verb: kernelhead evaluate ... --quiet" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("verb", "lines"), [("predict", 0), ("report", 0), ("evaluate", 1), ("inspect", 6), ("train", 6)], ids=str
)
def test_quiet_leaves_results_alone(
    work: Path, verb: str, lines: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*WORDS[verb], "--quiet"]) == 0
    said = capsys.readouterr()
    assert len(said.out.splitlines()) == lines
    assert said.err == ""
    assert main([*WORDS[verb], *(["--fresh"] if verb == "train" else [])]) == 0
    louder = len(capsys.readouterr().out.splitlines())
    assert louder > lines or verb == "evaluate"


def test_verbose_says_versions_and_seconds_beside(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["evaluate", "run", "--json", "-v"]) == 0
    said = capsys.readouterr()
    assert json.loads(said.out)["cases"] == 12
    first, last = said.err.splitlines()
    assert "Python 3." in first
    assert last.startswith("kernelhead: evaluate: ")
    assert last.endswith(" s, exit code 0")


def test_verbose_shows_where_it_went_wrong(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["evaluate", "nowhere", "--verbose"]) == 2
    err = capsys.readouterr().err
    assert "Traceback" in err
    assert err.splitlines()[-1].startswith("kernelhead: nowhere holds no weights.safetensors")


def test_the_voice_of_one_command_is_not_that_of_the_next(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["evaluate", "run", "-v"]) == 0
    assert capsys.readouterr().err != ""
    assert main(["evaluate", "run"]) == 0
    assert capsys.readouterr().err == ""


def test_a_fault_of_our_own_is_no_missing_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(name: str) -> None:
        raise ImportError("cannot import name", name="kernelhead.training")

    monkeypatch.setattr("kernelhead.cli.verbs.import_module", broken)
    with pytest.raises(ImportError, match="cannot import name"):
        main(["evaluate", "run"])


def test_a_verb_without_help_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "bare.py").write_text("EXAMPLE = ''\n", encoding="utf-8")
    monkeypatch.setattr("kernelhead.cli.__path__", [str(tmp_path)])
    with pytest.raises(LookupError, match=r"kernelhead\.cli\.bare has no HELP"):
        help_of("bare")


def test_a_plan_from_a_ledger_is_quiet_in_json(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_json(here / "none.json", {"rows": []})
    assert main(["plan", "--ledger", "none.json", "--json"]) == 2
    assert capsys.readouterr().out == ""


def test_every_verb_has_a_section_of_the_page() -> None:
    text = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
    headings = [line.removeprefix("## ") for line in text.splitlines() if line.startswith("## ")]
    assert tuple(headings[-len(VERBS) :]) == VERBS
    for section in text.split("\n## ")[-len(VERBS) :]:
        assert f"\nkernelhead {section.split()[0]} " in f"{section} ".replace(
            "kernelhead doctor\n", "kernelhead doctor \n"
        )
