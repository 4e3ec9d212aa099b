"""Scalars read off a tape, to be added to a loss."""

import torch
from torch import Tensor

from kernelhead.decomposition.ksvd import objective
from kernelhead.errors import BadInput, unknown
from kernelhead.nn.base import Moments
from kernelhead.nn.tape import Tape

REDUCTIONS = ("batch", "sample")
LAYERS = ("mean", "sum")
TRACES = ("W", "W_X")


def ksvd_penalty(
    tape: Tape,
    *,
    reduction: str = "sample",
    layers: str = "mean",
    trace: str = "W",
    weights: Tensor | None = None,
) -> Tensor:
    r"""The squared KSVD objective of every primal layer on a tape; zero where each is a kernel SVD.

    Per layer $J_{bh}$ is averaged over heads, over the calls of a layer that was called more than
    once, and over the batch inside (`batch`) or outside (`sample`) the square. With several
    processes the `batch` mean is taken over all of them, with gradients, so that it does not depend
    on how the batch was split; `sample` needs no word between them. Of the released code, long
    sequences and images use `batch`; time series, reinforcement learning and language use `sample`.

    Args:
        tape: of ``record(model)`` around the forward pass.
        reduction: "batch" or "sample".
        layers: "mean" over layers, or their "sum".
        trace: of the weights, "W", or of the weights after the landmarks, "W_X".
        weights: (b,), how much each sample counts in a mean over samples; all the same by default.

    Returns:
        A scalar that is never negative.

    Raises:
        BadInput: no primal layer was recorded; its moments carry no gradient though its weights
            want one, which reentrant activation checkpointing loses; or `sample` over calls with
            different batches.
        UnknownName: no such reduction, layers or trace.

    Example:
        >>> from kernelhead.nn import PrimalAttention, record
        >>> layer = PrimalAttention(8, heads=2, rank=2)
        >>> with record(layer) as tape:
        ...     out = layer(torch.randn(3, 5, 8))
        >>> bool(ksvd_penalty(tape, reduction="batch") >= 0)
        True
    """
    for what, name, known in (
        ("reduction", reduction, REDUCTIONS),
        ("layers", layers, LAYERS),
        ("trace", trace, TRACES),
    ):
        if name not in known:
            raise unknown("ksvd_penalty", what, name, known)
    squares = []
    for path, calls in tape.calls.items():
        moments = [call.moments for call in calls if call.moments is not None]
        if not moments:
            continue
        weights_want = any(weight.requires_grad for weight in tape.modules[path].parameters(recurse=False))
        if torch.is_grad_enabled() and weights_want and not moments[0].left.requires_grad:
            raise BadInput(
                f"ksvd_penalty: the moments of {path or 'the layer'!r} carry no gradient, its weights do; "
                "it ran under no_grad or reentrant checkpointing: use checkpoint(..., use_reentrant=False); "
                "to read the penalty as a number only, do that under no_grad as well"
            )
        each_call = [_objective(each, trace).mean(-1) for each in moments]  # each (b,)
        if reduction == "batch":
            squares.append(torch.stack([_batch_mean(each, weights) for each in each_call]).mean().square())
            continue
        sizes = {each.shape[0] for each in each_call}
        if len(sizes) > 1:
            raise BadInput(
                f"ksvd_penalty: {path or 'the layer'!r} was called with batches of {sorted(sizes)}; "
                "reduction 'sample' needs the same samples in each call"
            )
        squares.append(_mean(torch.stack(each_call).mean(0).square(), weights))
    if not squares:
        raise BadInput(
            "ksvd_penalty: no primal layer was recorded; run the model inside `with record(model) as tape:`"
        )
    total = torch.stack(squares).sum()
    return total / len(squares) if layers == "mean" else total


@torch.no_grad()
def ksvd_parts(tape: Tape) -> Tensor:
    r"""The three parts of J on a tape, (3,): J is the first plus the second less the third.

    They are $\tfrac12 \sum_s \lambda_s m^e_s$, the same of the right scores, and $\mathrm{Tr}(W_e^\top W_r)$,
    each a mean over samples, heads, calls and primal layers; without gradient.

    Raises:
        BadInput: no primal layer was recorded.

    Example:
        >>> from kernelhead.nn import PrimalAttention, record
        >>> layer = PrimalAttention(8, heads=2, rank=2)
        >>> with record(layer) as tape:
        ...     out = layer(torch.randn(3, 5, 8))
        >>> left, right, trace = ksvd_parts(tape)
        >>> squared = (left + right - trace).square()
        >>> bool(torch.isclose(squared, ksvd_penalty(tape, reduction="batch"), atol=1e-6))
        True
    """
    layers = [
        torch.stack([_parts(call.moments) for call in calls if call.moments is not None]).mean(0)
        for calls in tape.calls.values()
        if any(call.moments is not None for call in calls)
    ]
    if not layers:
        raise BadInput(
            "ksvd_parts: no primal layer was recorded; run the model inside `with record(model) as tape:`"
        )
    return torch.stack(layers).mean(0)


def _parts(moments: Moments) -> Tensor:
    none, zero = torch.zeros_like(moments.left), torch.zeros_like(moments.trace)
    left = objective(moments.left, none, moments.values, zero)
    right = objective(none, moments.right, moments.values, zero)
    return torch.stack([left.mean(), right.mean(), moments.trace.mean()])


def _objective(moments: Moments, trace: str) -> Tensor:
    """J of each sample and head, (b, h)."""
    chosen = moments.trace if trace == "W" else moments.projected_trace
    return objective(moments.left, moments.right, moments.values, chosen)


def _mean(per_sample: Tensor, weights: Tensor | None) -> Tensor:
    if weights is None:
        return per_sample.mean()
    weights = _checked(weights, per_sample)
    total = weights.sum()
    return (per_sample * weights).sum() / total.masked_fill(total == 0, 1)


def _checked(weights: Tensor, per_sample: Tensor) -> Tensor:
    if weights.shape != per_sample.shape:
        raise BadInput(
            f"ksvd_penalty: `weights` has shape {tuple(weights.shape)}, expected {tuple(per_sample.shape)}"
        )
    return weights.to(per_sample)


def _batch_mean(per_sample: Tensor, weights: Tensor | None) -> Tensor:
    """The mean over the samples of all processes."""
    distributed = torch.distributed
    if not (distributed.is_available() and distributed.is_initialized() and distributed.get_world_size() > 1):
        return _mean(per_sample, weights)
    from torch.distributed.nn.functional import all_reduce

    weights = torch.ones_like(per_sample) if weights is None else _checked(weights, per_sample)
    total = all_reduce(torch.stack([(per_sample * weights).sum(), weights.sum()]))
    return total[0] / total[1].detach()
