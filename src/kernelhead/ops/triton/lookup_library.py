"""Rows of a table by token for autograd and tracing."""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from kernelhead.ops.triton import lookup


def look_up(table: Tensor, tokens: Tensor) -> Tensor:
    """Rows of a table, (... c); only the gradient is a kernel, so that a compiler may fuse the rest."""
    made: Tensor = _LookUp.apply(table, tokens)
    return made


@torch.library.custom_op("kernelhead::gathered", mutates_args=())
def traced_gathered(tokens: Tensor, grad: Tensor, vocabulary: int) -> Tensor:
    """The sum of the rows of every token, as an op that torch.compile and torch.export keep whole."""
    return lookup.gathered(tokens.contiguous(), grad.contiguous(), vocabulary)


@traced_gathered.register_fake
def _(tokens: Tensor, grad: Tensor, vocabulary: int) -> Tensor:
    return grad.new_empty((vocabulary, grad.shape[-1]), dtype=torch.float32)


class _LookUp(torch.autograd.Function):
    """`look_up`."""

    @staticmethod
    def forward(ctx: Any, table: Tensor, tokens: Tensor) -> Tensor:
        ctx.save_for_backward(tokens)
        ctx.vocabulary, ctx.kind = len(table), table.dtype
        return F.embedding(tokens, table)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (tokens,) = ctx.saved_tensors
        return traced_gathered(tokens, grads[0], ctx.vocabulary).to(ctx.kind), None
