"""Pipes, terminals and locales: what a process of its own writes to them."""

import io
import os
import pty
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from rich.cells import cell_len
from rich.table import Table

from kernelhead.cli import terminal
from kernelhead.cli.__main__ import main
from kernelhead.cli.voice import VOICE
from tests.training.tiny import options

COLOUR = re.compile(r"\x1b\[[0-9;]*[349][0-9]m")
KERNELHEAD = [sys.executable, "-m", "kernelhead.cli"]


def piped(*words: str, cwd: Path, **environment: str) -> "subprocess.CompletedProcess[bytes]":
    """A process whose output goes through a pipe."""
    return subprocess.run(
        [*KERNELHEAD, *words],
        cwd=cwd,
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
        capture_output=True,
        timeout=120,
        check=False,
    )


def shown(*words: str, cwd: Path, columns: int, **environment: str) -> str:
    """What a terminal of so many columns is sent."""
    held, end = pty.openpty()
    process = subprocess.Popen(
        [*KERNELHEAD, *words],
        cwd=cwd,
        env={**os.environ, "COLUMNS": str(columns), "TERM": "xterm-256color", **environment},
        stdin=end,
        stdout=end,
        stderr=end,
    )
    os.close(end)
    text = b""
    try:
        while part := os.read(held, 4096):
            text += part
    except OSError:  # Linux says so when the other end is closed
        pass
    finally:
        os.close(held)
        assert process.wait(timeout=60) == 0
    return text.decode()


def test_a_pipe_has_no_colour_and_no_progress_bar(here: Path) -> None:
    done = piped("train", "train.csv", *options(epochs=2), "--out", "new", cwd=here)
    assert done.returncode == 0
    assert b"\x1b" not in done.stdout + done.stderr
    assert done.stdout.startswith(b"primal: epoch 1, loss ")


def test_a_narrow_terminal_keeps_a_line_of_progress(here: Path) -> None:
    words = ["train", "train.csv", *options(epochs=2), "--out", "new"]
    text = shown(*words, cwd=here, columns=20, NO_COLOR="1")
    assert "Traceback" not in text
    assert COLOUR.search(text) is None
    bar, _, rest = text.partition("accuracy, best epoch")
    states = [re.sub(r"\x1b\[[?0-9;]*[a-zA-Z]", "", part) for part in re.split(r"[\r\n]+", bar)]
    assert max(map(cell_len, states)) <= 20
    assert any(state.startswith("100% primal  epoch") for state in states)
    for word in ("validation", "parameters", "peak MiB", "run folder: new"):
        assert word in rest


@pytest.mark.parametrize("words", [["--help"], ["plan", "--params", "85M"]], ids=["help", "table"])
def test_a_reader_that_goes_ends_it_without_a_word(words: list[str], tmp_path: Path) -> None:
    """As in `kernelhead plan ... | head -0`: the reader is gone before the first line."""
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = subprocess.run(
            [*KERNELHEAD, *words],
            cwd=tmp_path,
            stdout=writer,
            stderr=subprocess.PIPE,
            timeout=120,
            check=False,
        )
    finally:
        os.close(writer)
    assert (done.returncode, done.stderr) == (141, b"")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
def test_a_full_output_is_one_sentence(tmp_path: Path) -> None:
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [*KERNELHEAD, "--help"],
            cwd=tmp_path,
            stdout=full,
            stderr=subprocess.PIPE,
            timeout=120,
            check=False,
        )
    assert (done.returncode, done.stderr) == (2, b"kernelhead: the output: No space left on device\n")


def test_a_closed_output_is_no_failure(tmp_path: Path) -> None:
    command = f"'{sys.executable}' -m kernelhead.cli --version >&-"
    done = subprocess.run(["sh", "-c", command], cwd=tmp_path, capture_output=True, timeout=120, check=False)
    assert (done.returncode, done.stdout) == (0, b"")
    assert b"Traceback" not in done.stderr


@pytest.mark.parametrize(
    "locale",
    [{"LC_ALL": "C"}, {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}],
    ids=["C", "ASCII"],
)
def test_a_locale_without_letters_gets_them_spelled(here: Path, locale: dict[str, str]) -> None:
    (here / "prüfung.csv").write_bytes((here / "test.csv").read_bytes())
    done = piped("evaluate", "run", "prüfung.csv", cwd=here, **locale)
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"fung, 12 cases: accuracy" in done.stdout
    if len(locale) > 1:
        assert done.stdout.isascii()


def test_a_name_that_is_no_text_is_shown(here: Path) -> None:
    name = b"\xff.csv"
    (Path(os.fsdecode(os.path.join(os.fsencode(here), name)))).write_bytes((here / "test.csv").read_bytes())
    done = piped("evaluate", "run", os.fsdecode(name), cwd=here, LC_ALL="C.UTF-8")
    assert (done.returncode, done.stderr) == (0, b"")
    assert rb"\udcff, 12 cases: accuracy" in done.stdout


def test_a_warning_is_one_line(tmp_path: Path) -> None:
    code = (
        "import sys, warnings; from kernelhead.cli import __main__ as m; sys.argv[1:] = ['--version']\n"
        "m._run = lambda given: warnings.warn('too\\nfew') or 0\nsys.exit(m.main())"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, check=True)
    assert done.stderr == b"kernelhead: note: too few\n"
    code = code.replace("m._run", "m._settle(); m.VOICE.verbose = True; m._settle = lambda: None; m._run")
    code = code.replace(
        "lambda given: warnings", "lambda given: setattr(m.VOICE, 'verbose', True) or warnings"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, check=True)
    assert b"UserWarning: too" in done.stderr


@pytest.fixture
def console(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A terminal of a given width, whose text is kept."""

    def made(width: int) -> terminal._Console:
        kept = terminal._Console(
            file=io.StringIO(), force_terminal=True, width=width, soft_wrap=True, highlight=False
        )
        monkeypatch.setattr(terminal, "CONSOLE", kept)
        return kept

    return made


def watched(kept: Any, steps: int = 4) -> str:
    with terminal.watching("a [title] that is longer than any terminal is wide " * 3) as watcher:
        for step in range(steps):
            watcher.step(step + 1, steps)
        watcher.epoch({"epoch": 3, "valid_accuracy": 0.5, "train_loss": 1.0})
    return str(kept.file.getvalue())


@pytest.mark.parametrize("width", [1, 20, 79, 80, 200])
def test_progress_stays_on_one_line(width: int, console: Any) -> None:
    text = watched(console(width))
    states = [re.sub(r"\x1b\[[?0-9;]*[a-zA-Z]", "", part) for part in re.split(r"[\r\n]+", text)]
    assert max(map(cell_len, states)) <= max(width, 6)
    assert "a [title]" in text or width < 20
    assert "100%" in text or width >= 80 or width < 4


def test_quiet_has_no_progress(console: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(VOICE, "quiet", True)
    assert watched(console(80)) == ""


@pytest.mark.parametrize("width", [10, 30, 60, 100])
def test_a_table_loses_no_letter(width: int, console: Any) -> None:
    words = ["blocks.0.attention", "several words of one cell", "0.123456"]
    table = Table("layer", "what is said of it", "number")
    table.add_row(*words)
    kept = console(width)
    terminal.show(table)
    text = re.sub(r"\x1b\[[0-9;]*m", "", kept.file.getvalue())
    rows = [line.strip("│").split("│") for line in text.splitlines() if line.startswith("│")]
    cells = ["".join(column).replace(" ", "") for column in zip(*rows, strict=True)]
    assert cells == [word.replace(" ", "") for word in words]


def test_a_reader_that_goes_while_a_table_is_drawn(console: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = console(80)

    def refuse(_: str) -> None:
        raise BrokenPipeError

    monkeypatch.setattr(kept.file, "write", refuse)
    monkeypatch.setattr("kernelhead.cli.plan.show", terminal.show)
    monkeypatch.setattr("os.dup2", lambda *_: None)
    assert main(["plan", "--params", "85M"]) == 141
