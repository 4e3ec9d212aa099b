"""The Makefile and its set-up say plainly what is missing."""

import subprocess
from pathlib import Path

import pytest

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


@pytest.mark.parametrize(
    ("target", "held"),
    [
        ("test", ("ruff check .", "ruff format --check .", "bin/mypy", "bin/pytest", "-k timm")),
        ("gates", ("--cov-fail-under=90", "check_wheel.sh")),
    ],
)
def test_make_holds_every_gate(target: str, held: tuple[str, ...]) -> None:
    made = subprocess.run(["make", "-n", target], cwd=ROOT, capture_output=True, text=True, check=True)
    for gate in held:
        assert gate in made.stdout
