"""Apply, as functions: check axes, then compute."""

from kernelhead.ops.linear import linear_attention, nystrom_attention, performer_attention
from kernelhead.ops.primal import (
    gather_landmarks,
    landmark_index,
    landmark_weights,
    prefix_scores,
    prefix_weights,
    primal_attention,
    primal_attention_moments,
    primal_scores,
    running_means,
    score_moments,
)
from kernelhead.ops.softmax import softmax_attention, softmax_pattern

__all__ = [
    "gather_landmarks",
    "landmark_index",
    "landmark_weights",
    "linear_attention",
    "nystrom_attention",
    "performer_attention",
    "prefix_scores",
    "prefix_weights",
    "primal_attention",
    "primal_attention_moments",
    "primal_scores",
    "running_means",
    "score_moments",
    "softmax_attention",
    "softmax_pattern",
]
