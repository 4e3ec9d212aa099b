"""Apply, as functions: check axes, then compute."""

from kernelhead.ops.distributional import (
    distributional_pattern,
    distributional_profiles,
    distributional_scores,
)
from kernelhead.ops.eager.rpc import PursuitTrace, RPCState
from kernelhead.ops.factored import factored_attention, factored_pattern
from kernelhead.ops.feedforward import feed_forward
from kernelhead.ops.linear import linear_attention, nystrom_attention, performer_attention
from kernelhead.ops.local import local_mix
from kernelhead.ops.lookup import look_up
from kernelhead.ops.maps import linear_maps
from kernelhead.ops.polynomial import polynomial_attention
from kernelhead.ops.primal import (
    gather_landmarks,
    landmark_index,
    landmark_weights,
    prefix_scores,
    prefix_weights,
    primal_attention,
    primal_attention_moments,
    primal_pairs,
    primal_scores,
    primal_weights,
    running_means,
    score_moments,
)
from kernelhead.ops.pursuit import Pursuit
from kernelhead.ops.rows import own_attention, own_pattern
from kernelhead.ops.rpc import (
    rpc_attention,
    rpc_bounds,
    rpc_pattern,
    rpc_start,
    rpc_step,
    rpc_trace,
)
from kernelhead.ops.scaled import scaled_values, values_less_matrix, values_less_pattern
from kernelhead.ops.separation import (
    generic_rank,
    log_separation_rank,
    nested_sums,
    separation_bounds,
)
from kernelhead.ops.softmax import softmax_attention, softmax_pattern
from kernelhead.ops.transport import Sinkhorn, normalised_scores, sinkhorn, squared_distances

__all__ = [
    "Pursuit",
    "PursuitTrace",
    "RPCState",
    "Sinkhorn",
    "distributional_pattern",
    "distributional_profiles",
    "distributional_scores",
    "factored_attention",
    "factored_pattern",
    "feed_forward",
    "gather_landmarks",
    "generic_rank",
    "landmark_index",
    "landmark_weights",
    "linear_attention",
    "linear_maps",
    "local_mix",
    "log_separation_rank",
    "look_up",
    "nested_sums",
    "normalised_scores",
    "nystrom_attention",
    "own_attention",
    "own_pattern",
    "performer_attention",
    "polynomial_attention",
    "prefix_scores",
    "prefix_weights",
    "primal_attention",
    "primal_attention_moments",
    "primal_pairs",
    "primal_scores",
    "primal_weights",
    "rpc_attention",
    "rpc_bounds",
    "rpc_pattern",
    "rpc_start",
    "rpc_step",
    "rpc_trace",
    "running_means",
    "scaled_values",
    "score_moments",
    "separation_bounds",
    "sinkhorn",
    "softmax_attention",
    "softmax_pattern",
    "squared_distances",
    "values_less_matrix",
    "values_less_pattern",
]
