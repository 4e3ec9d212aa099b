"""The examples: each runs as a reader runs it, in a folder of its own, and says what it promises."""

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

FOLDER = Path(__file__).parent.parent / "examples"
ALL = sorted(path.stem for path in FOLDER.glob("*.py"))
WANTED = {
    "causal_graph": [r"rain o-> wet lawn", r"wet lawn --> slippery", r"graph 0\.9\d, attention 0\.7\d"],
    "classify_csv": [r"240 series of 2 channels", r"test accuracy \d\d\.\d %, .* 33\.3 %"],
    "read_huggingface": [r"^BertModel, 4 cases", r"encoder\.layer\.1\.attention\.self +4", r"kernel PCA\?"],
    "swap_and_distil": [r"as trained: +\d\d\.\d %", r"distilled: +\d\d\.\d %", r"to the last bit: True"],
    "table_rows": [r"124 rows to learn from", r"sees other rows +0\.\d\d after", r"only +[01]\.\d\d after"],
}


def said(name: str, folder: Path, *words: str, code: int = 0) -> str:
    """What an example prints on one thread, with nothing to warn of."""
    done = subprocess.run(
        [sys.executable, str(FOLDER / f"{name}.py"), *words],
        cwd=folder,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == code, done.stderr
    assert "Warning" not in done.stderr, done.stderr
    return done.stdout


def figures(pattern: str, text: str) -> list[float]:
    return [float(each) for each in re.findall(pattern, text)]


def test_every_example_is_tried() -> None:
    assert sorted(WANTED) == ALL


@pytest.mark.slow
@pytest.mark.parametrize("name", ALL)
def test_an_example_runs_and_says_what_it_promises(name: str, tmp_path: Path) -> None:
    if name == "classify_csv":
        pytest.importorskip("aeon")
    if name == "read_huggingface":
        pytest.importorskip("transformers")
    text = said(name, tmp_path)
    for pattern in WANTED[name]:
        assert re.search(pattern, text, re.MULTILINE), f"{pattern} is not in:\n{text}"
    if name == "classify_csv":
        assert figures(r"test accuracy (\S+)", text)[0] > 60
        assert (tmp_path / "predictions.csv").read_text(encoding="utf-8").count("\n") == 61
    if name == "swap_and_distil":
        trained, random, fitted, distilled = figures(r": +(\d+\.\d) %", text)
        assert trained > 80
        assert random < fitted - 10
        assert distilled > fitted - 2
    if name == "table_rows":
        with_rows, without = figures(r"(\d\.\d\d) after", text)
        assert with_rows < 0.5 < 0.9 < without


def test_an_example_takes_a_file_of_the_reader(tmp_path: Path) -> None:
    np.save(tmp_path / "mine.npy", np.array([[1.0, 0.0, 0.0], [0.4, 0.6, 0.0], [0.2, 0.3, 0.5]]))
    text = said("causal_graph", tmp_path, "--attention", "mine.npy", "--out", "mine.dot")
    assert "3 points" in text
    assert "random models" not in text
    assert (tmp_path / "mine.dot").read_text(encoding="utf-8").startswith("digraph")


@pytest.mark.parametrize("name", ALL)
def test_an_example_says_how_to_call_it(name: str) -> None:
    tree = ast.parse((FOLDER / f"{name}.py").read_text(encoding="utf-8"))
    assert f"python examples/{name}.py" in str(ast.get_docstring(tree))


def test_the_help_shows_what_the_file_says(tmp_path: Path) -> None:
    assert "python examples/causal_graph.py --attention mine.npy" in said("causal_graph", tmp_path, "--help")
