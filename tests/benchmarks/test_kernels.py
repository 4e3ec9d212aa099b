"""Kernels of a step: how they are listed, and what is refused."""

import sys

import pytest
import torch

from benchmarks import kernels


def test_the_longest_come_first_and_short_ones_are_one_line() -> None:
    seen = [("a", 10, 50.0), ("b", 5, 500.0), ("c", 5, 20.0), ("nothing", 1, 0.0)]
    assert list(kernels.listed(seen, steps=5, least=12.0)) == [
        "    114.0 us  all kernels",
        "    100.0 us     1 x  b",
        "     14.0 us  2 kernels under 12 us",
    ]
    assert list(kernels.listed(seen[:1], steps=5, least=1.0))[1:] == ["     10.0 us     2 x  a"]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["Images", "primal"], "kernels: unknown task 'Images'"),
        (["Image", "primals"], "kernels: unknown attention 'primals'"),
        (["Image", "primal"], "kernels: no CUDA device"),
    ],
)
def test_what_is_refused(
    words: list[str], sentence: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["kernels", *words])
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert kernels.main() == 2
    assert capsys.readouterr().err.startswith(sentence)
