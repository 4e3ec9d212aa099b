"""Calibration: its definitions, its laws, its words."""

from itertools import pairwise
from math import log

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kernelhead.errors import BadInput, ShapeError
from kernelhead.inspection import brier_score, calibration_error, negative_log_likelihood
from tests.inputs import points

FIGURES = {"error": calibration_error, "brier": brier_score, "likelihood": negative_log_likelihood}


def defined(scores: torch.Tensor, y: torch.Tensor, bins: int) -> tuple[float, float, float]:
    """All three by loops over cases."""
    held: dict[int, list[tuple[float, bool]]] = {}
    brier = likelihood = 0.0
    for row, label in zip(scores.softmax(1).tolist(), y.tolist(), strict=True):
        confidence = max(row)
        place = next(k for k in range(bins) if confidence <= (k + 1) / bins or k == bins - 1)
        held.setdefault(place, []).append((confidence, row.index(confidence) == label))
        brier += sum((p - (k == label)) ** 2 for k, p in enumerate(row))
        likelihood -= log(row[label])
    gaps = [abs(sum(right for _, right in each) - sum(sure for sure, _ in each)) for each in held.values()]
    return sum(gaps) / len(y), brier / len(y), likelihood / len(y)


@given(n=st.integers(1, 30), bins=st.integers(1, 20), seed=st.integers(0, 99))
def test_the_figures_are_the_definition(n: int, bins: int, seed: int) -> None:
    scores, y = 3 * points(n, 4, seed=seed), torch.arange(n) % 4
    error, brier, likelihood = defined(scores, y, bins)
    assert calibration_error(scores, y, bins=bins) == pytest.approx(error, rel=1e-10)
    assert brier_score(scores, y) == pytest.approx(brier, rel=1e-10)
    assert negative_log_likelihood(scores, y) == pytest.approx(likelihood, rel=1e-10)


@pytest.mark.parametrize("figure", FIGURES.values(), ids=FIGURES)
def test_sure_and_right_is_zero(figure: object) -> None:
    y = torch.tensor([2, 0, 1])
    assert figure((1000.0 * torch.eye(3)[y]).requires_grad_(), y) == 0
    assert figure(torch.eye(3), y.to(torch.int8)) == figure(torch.eye(3), y)


def test_sure_and_wrong_is_the_worst() -> None:
    scores, y = 1000.0 * torch.eye(3), torch.tensor([1, 2, 0])
    assert (calibration_error(scores, y), brier_score(scores, y)) == (1, 2)


@given(seed=st.integers(0, 99))
def test_more_bins_never_hide_more(seed: int) -> None:
    scores, y = points(40, 3, seed=seed), torch.arange(40) % 3
    errors = [calibration_error(scores, y, bins=bins) for bins in (1, 2, 4, 8)]
    assert all(coarse <= fine + 1e-12 for coarse, fine in pairwise(errors))


@pytest.mark.parametrize("figure", FIGURES.values(), ids=FIGURES)
@pytest.mark.parametrize(
    ("labels", "error", "sentence"),
    [
        ([0, 1], ShapeError, r"axis `b` is 3 in `scores` but 2 in `y` \(2,\)"),
        ([0, 1, 4], BadInput, r"`y` is torch.int64 from 0 to 4, expected whole numbers from 0 to 3"),
        ([True, False, True], BadInput, r"`y` is torch.bool from 0 to 1, expected whole numbers"),
        ([0.0, 1.0, 2.0], BadInput, r"`y` is torch.float32 from 0 to 2, expected whole numbers"),
        (None, BadInput, r"`scores` \(0, 4\) holds no case"),
    ],
    ids=["length", "label", "bool", "dtype", "empty"],
)
def test_what_does_not_fit_is_named(
    figure: object, labels: list[float] | None, error: type[Exception], sentence: str
) -> None:
    scores, y = (points(0, 4), torch.arange(0)) if labels is None else (points(3, 4), torch.tensor(labels))
    with pytest.raises(error, match=sentence):
        figure(scores, y)


def test_no_bin_is_refused() -> None:
    with pytest.raises(BadInput, match="calibration_error: bins is 0, expected a whole number of at least 1"):
        calibration_error(points(3, 4), torch.arange(3), bins=0)
