"""Distributional attention: what a kernel between words says of a text, without anything learned."""

import torch
from torch import Tensor

from kernelhead.errors import BadInput, unknown
from kernelhead.ops.eager import distributional as eager
from kernelhead.pattern import Pattern
from kernelhead.shapes import check_axes

NORMALISATIONS = ("row", "softmax", "none")


def distributional_scores(kernel: Pattern, words: Tensor) -> Tensor:
    r"""The pattern of a text, $M = Q S Q^\top$ with $Q$ the selector of its words: $M_{rs} = S_{w_r w_s}$.

    Shapes: kernel (v, v), words (... n), places in the vocabulary; returns (... n n).

    Raises:
        BadInput: words are not whole numbers.

    Example:
        >>> from kernelhead.pattern import Dense
        >>> distributional_scores(Dense(torch.tensor([[0.0, 4.0], [4.0, 0.0]])), torch.tensor([1, 0, 1]))
        tensor([[0., 4., 0.],
                [4., 0., 4.],
                [0., 4., 0.]])
    """
    return eager.distributional_scores(kernel, _whole("distributional_scores", words))


def distributional_profiles(kernel: Pattern, words: Tensor) -> Tensor:
    """The rows of a kernel that belong to the words of a text, Q S.

    Shapes: kernel (v, v), words (... n); returns (... n v).

    Raises:
        BadInput: words are not whole numbers.

    Example:
        >>> from kernelhead.pattern import Dense
        >>> distributional_profiles(Dense(torch.tensor([[0.0, 4.0], [4.0, 0.0]])), torch.tensor([1, 1]))
        tensor([[4., 0.],
                [4., 0.]])
    """
    return eager.distributional_profiles(kernel, _whole("distributional_profiles", words))


def distributional_pattern(
    scores: Tensor, *, normalise: str = "row", mask: Tensor | None = None, causal: bool = False
) -> Tensor:
    r"""Scores as a pattern: $M_{rs} / \sum_t M_{rt}$, or softmax of each row, or as they are.

    A row whose sum is zero stays zero. Rows with negative entries are no shares: take softmax for them.

    Shapes: scores (... n n), mask (... n), True where real; returns (... n n), zero at padded places.

    Args:
        normalise: "row", "softmax" or "none".
        causal: whether a place sees itself and those before it only.

    Raises:
        ShapeError: axes that must agree do not.
        UnknownName: no such normalisation.

    Example:
        >>> distributional_pattern(torch.tensor([[0.0, 4.0, 5.0], [4.0, 0.0, 3.0], [5.0, 3.0, 0.0]]))[0]
        tensor([0.0000, 0.4444, 0.5556])
    """
    who = "distributional_pattern"
    if normalise not in NORMALISATIONS:
        raise unknown(who, "normalisation", normalise, NORMALISATIONS)
    sizes = check_axes(who, scores=(scores, "... n n"))
    seen = scores.new_ones(sizes["n"], sizes["n"], dtype=torch.bool)
    seen = seen.tril() if causal else seen
    if mask is not None:
        check_axes(who, scores=(scores, "... n n"), mask=(mask, "... n"))
        seen = seen & mask.unsqueeze(-2) & mask.unsqueeze(-1)
    return eager.distributional_pattern(scores, normalise, seen)


def _whole(who: str, words: Tensor) -> Tensor:
    if words.is_floating_point() or words.dtype == torch.bool:
        raise BadInput(f"{who}: `words` is {words.dtype}, expected whole numbers")
    return words
