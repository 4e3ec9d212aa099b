"""The Makefile and its set-up say plainly what is missing."""

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_an_old_python_is_named(tmp_path: Path) -> None:
    old = tmp_path / "python3.9"
    old.write_text('#!/bin/sh\nif [ "$1" = --version ]; then echo Python 3.9.2; else exit 1; fi\n')
    old.chmod(0o755)
    command = ["sh", "scripts/setup.sh", str(tmp_path / "venv"), str(old)]
    made = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert made.returncode == 2
    assert "kernelhead needs Python 3.11 or newer; found: Python 3.9.2." in made.stderr
    assert not (tmp_path / "venv").exists()


def test_a_missing_python_is_named(tmp_path: Path) -> None:
    command = ["sh", "scripts/setup.sh", str(tmp_path / "venv"), str(tmp_path / "none")]
    made = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert made.returncode == 2
    assert "kernelhead needs Python 3.11 or newer" in made.stderr


def test_an_old_make_is_named() -> None:
    command = ["make", "-n", "help", "MAKE_VERSION=3.80"]
    made = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert made.returncode == 2
    assert 'kernelhead needs GNU make 3.81 or newer, this is "3.80"' in made.stderr


def test_make_holds_every_gate() -> None:
    made = subprocess.run(["make", "-n", "test"], cwd=ROOT, capture_output=True, text=True, check=True)
    for gate in ("ruff check .", "ruff format --check .", "bin/mypy", "slipcover", "lines.py lines.json",
                 "--least 90", "-m plain", "-k timm", "check_wheel.sh"):  # fmt: skip
        assert gate in made.stdout


def counted(folder: Path, files: dict[str, tuple[list[int], list[int]]], *asked: str) -> tuple[int, str]:
    """Exit code and page of scripts/lines.py for lines of files that ran and that did not."""
    record = {name: {"executed_lines": ran, "missing_lines": not_} for name, (ran, not_) in files.items()}
    (folder / "lines.json").write_text(json.dumps({"files": record}), encoding="utf-8")
    for name in files:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()
    command = [sys.executable, str(ROOT / "scripts" / "lines.py"), "lines.json", "lines.txt", *asked]
    made = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    return made.returncode, made.stdout + made.stderr


def test_too_few_lines_are_said(tmp_path: Path) -> None:
    files = {"src/kernelhead/a/one.py": ([1, 2, 9], [3, 4, 7]), "src/kernelhead/b.py": ([1, 2], [])}
    code, said = counted(tmp_path, files, "--least", "62")
    assert code == 0, said
    page = (tmp_path / "lines.txt").read_text(encoding="utf-8").splitlines()
    assert page == ["  50.0 %  a", "  50.0 %      a/one.py  3-4 7", " 100.0 %  b.py", " 100.0 %      b.py"]
    code, said = counted(tmp_path, files, "--least", "63")
    assert code == 1
    assert said.startswith("62.5 % of the lines of the package ran, 63 % wanted")


def test_a_file_that_was_not_counted_is_said(tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "new.py").touch()
    code, said = counted(tmp_path, {"src/kernelhead/b.py": ([1, 2], [])})
    assert code == 1
    assert "lines: 1 files were not counted, such as " in said
