"""How far the probabilities of a classifier can be trusted."""

import torch
from torch import Tensor
from torch.nn import functional as F

from kernelhead.errors import BadInput
from kernelhead.shapes import check_axes, check_size

BINS = 15


def calibration_error(scores: Tensor, y: Tensor, *, bins: int = BINS) -> float:
    r"""Expected calibration error, $\sum_k \frac{n_k}{n} |\mathrm{accuracy}_k - \mathrm{confidence}_k|$.

    Cases fall into `bins` equal parts of (0, 1] by the probability of the class they are given.

    Shapes: scores (b, classes) before the softmax, y (b,).

    Args:
        scores: of each class.
        y: the true classes.
        bins: how many parts.

    Raises:
        ShapeError: scores and labels are of different lengths, or of other axes.
        BadInput: there is no case, a label has no score, or `bins` is below one.

    Example:
        >>> round(calibration_error(torch.zeros(4, 2), torch.tensor([0, 0, 0, 1])), 6)
        0.25
    """
    chances = _chances("calibration_error", scores, y)
    check_size("calibration_error", "bins", bins)
    confidence, given = chances.max(1)
    place = ((confidence * bins).ceil().long() - 1).clamp(0, bins - 1)
    surplus = (given == y).double() - confidence
    gaps = torch.zeros(bins, dtype=surplus.dtype, device=surplus.device).index_add(0, place, surplus)
    return float(gaps.abs().sum() / len(y))


def brier_score(scores: Tensor, y: Tensor) -> float:
    """Mean squared distance of the probabilities to the right answer, summed over classes: 0 to 2.

    Shapes: scores (b, classes) before the softmax, y (b,).

    Raises:
        ShapeError: scores and labels are of different lengths, or of other axes.
        BadInput: there is no case, or a label has no score.

    Example:
        >>> brier_score(torch.zeros(2, 2), torch.tensor([0, 1]))
        0.5
    """
    chances = _chances("brier_score", scores, y)
    return float((chances - F.one_hot(y.long(), chances.shape[1])).square().sum(1).mean())


def negative_log_likelihood(scores: Tensor, y: Tensor) -> float:
    """Mean of minus the logarithm of the probability of the right class.

    Shapes: scores (b, classes) before the softmax, y (b,).

    Raises:
        ShapeError: scores and labels are of different lengths, or of other axes.
        BadInput: there is no case, or a label has no score.

    Example:
        >>> round(negative_log_likelihood(torch.zeros(2, 2), torch.tensor([0, 1])), 4)
        0.6931
    """
    _chances("negative_log_likelihood", scores, y)
    return float(F.cross_entropy(scores.detach().double(), y.long()))


def _chances(who: str, scores: Tensor, y: Tensor) -> Tensor:
    """Checked, the probabilities (b, classes) in float64."""
    check_axes(who, scores=(scores, "b v"), y=(y, "b"))
    if len(y) == 0:
        raise BadInput(f"{who}: `scores` {tuple(scores.shape)} holds no case")
    least, most = int(y.min()), int(y.max())
    if y.is_floating_point() or y.dtype == torch.bool or least < 0 or most >= scores.shape[1]:
        raise BadInput(
            f"{who}: `y` is {y.dtype} from {least} to {most}, "
            f"expected whole numbers from 0 to {scores.shape[1] - 1}"
        )
    return scores.detach().double().softmax(1)
