"""Rows of a table by number, as a function."""

from torch import Tensor
from torch.nn import functional as F

from kernelhead.errors import BadInput
from kernelhead.ops.backends import lookup_backend
from kernelhead.shapes import check_axes


def look_up(table: Tensor, tokens: Tensor) -> Tensor:
    """The row of each token, $o_i = T_{t_i}$.

    On a CUDA device the gradient of a table with few rows is a product, at a cost that does not grow where
    many tokens are the same.

    Shapes: table (v, c), tokens (...), int32 or int64 numbers from 0 to below v; returns (..., c).

    Raises:
        BadInput: the tokens are no such numbers by their type.

    Example:
        >>> import torch
        >>> look_up(torch.tensor([[1.0], [5.0]]), torch.tensor([1, 1, 0])).flatten()
        tensor([5., 5., 1.])
    """
    check_axes("look_up", table=(table, "v c"))
    if tokens.dtype.is_floating_point or tokens.dtype.itemsize < 4:
        raise BadInput(f"look_up: `tokens` is {tokens.dtype}, expected torch.int32 or torch.int64")
    if lookup_backend(table, tokens) == "triton":
        from kernelhead.ops.triton import lookup_library as library

        return library.look_up(table, tokens)
    return F.embedding(tokens, table)
