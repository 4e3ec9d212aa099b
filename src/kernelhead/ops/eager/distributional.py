"""Distributional attention in plain PyTorch: a kernel between words, restricted to a text and normalised."""

from torch import Tensor

from kernelhead.ops.eager.softmax import seen_softmax
from kernelhead.pattern import Dense, Pattern


def distributional_scores(kernel: Pattern, words: Tensor) -> Tensor:
    """S[w_r, w_s] for all places r, s of a text."""
    if isinstance(kernel, Dense):
        return kernel.entries[words.unsqueeze(-1), words.unsqueeze(-2)]
    return (kernel.left[words] * kernel.values) @ kernel.right[words].mT


def distributional_profiles(kernel: Pattern, words: Tensor) -> Tensor:
    """S[w_r, :] for all places r of a text."""
    if isinstance(kernel, Dense):
        return kernel.entries[words]
    return (kernel.left[words] * kernel.values) @ kernel.right.mT


def distributional_pattern(scores: Tensor, normalise: str, seen: Tensor) -> Tensor:
    """Scores where `seen`, each row as it is, divided by its sum, or through softmax; zero elsewhere."""
    if normalise == "softmax":
        return seen_softmax(scores, seen)
    scores = scores.masked_fill(~seen, 0)
    if normalise == "none":
        return scores
    total = scores.sum(-1, keepdim=True)
    return (scores / total.masked_fill(total == 0, 1)).masked_fill(total == 0, 0)
