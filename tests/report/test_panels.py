"""Panels of a figure: what stands in the file, the same bytes again, and the words."""

import sys
from pathlib import Path

import pytest

from kernelhead.errors import MissingExtra
from kernelhead.report.panels import Curve, Panel, draw_panels

PANELS = [
    Panel("One", ("here", "there"), [Curve([1, 2], [1.0, 10.0], "a line", colour=3)], log=("y",)),
    Panel("Two", ("x", "y"), [Curve([0.0], [0.0], form="o")]),
]


def test_all_words_stand_in_the_file_and_the_bytes_are_the_same_again(tmp_path: Path) -> None:
    for name in ("one.svg", "two.svg"):
        draw_panels(PANELS, tmp_path / name)
    first = (tmp_path / "one.svg").read_text()
    assert all(words in first for words in ("One", "Two", "here", "there", "a line"))
    assert first == (tmp_path / "two.svg").read_text()


def test_a_missing_matplotlib_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(MissingExtra, match="draw_panels: needs matplotlib"):
        draw_panels(PANELS, tmp_path / "none.svg")
