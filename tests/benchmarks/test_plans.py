"""Plans of kernels: what is tried, and what is refused."""

import sys

import pytest
import torch

pytest.importorskip("triton", reason="the extra gpu is not installed")

from benchmarks import plans


def test_plans_are_no_two_alike() -> None:
    cells = [cell for name, (made, _) in plans.KERNELS.items() for cell in made(name)]
    assert {cell["kernel"] for cell in cells} == set(plans.KERNELS)
    assert len({tuple(cell.items()) for cell in cells}) == len(cells)


def test_a_plan_that_does_not_fit_is_the_slowest(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(cell: plans.Cell) -> float:
        raise RuntimeError("out of shared memory")

    monkeypatch.setitem(plans.KERNELS, "backward", (plans.primal_cells, refused))
    assert plans.time_of({"kernel": "backward"}) == float("inf")


@pytest.mark.parametrize(
    ("word", "sentence"),
    [("forwards", "plans: no kernel 'forwards', there are forward, "), ("mix", "plans: no CUDA device")],
)
def test_what_is_refused(
    word: str, sentence: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["plans", word])
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert plans.main() == 2
    assert capsys.readouterr().err.startswith(sentence)
