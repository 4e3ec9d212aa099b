"""Which backend fits a tensor: a pure function of what is given."""

from importlib.util import find_spec

import torch
from torch import Tensor

from kernelhead.kernels import AbstractKernel, Cosine

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
WIDEST = 128
HAS_TRITON = find_spec("triton") is not None


def primal_backend(
    query: Tensor,
    key: Tensor,
    left: Tensor,
    join: Tensor,
    bias: Tensor,
    kernel: AbstractKernel,
    mask: Tensor | None,
) -> str:
    """ "triton" for the cosine map on a CUDA device in up to float32, else "eager".

    The kernels serve (b, h, n, d) points of up to 128 features with up to 128 components (64 in
    float32), of any strides in the first three axes.

    Example:
        >>> x = torch.zeros(1, 1, 2, 4)
        >>> primal_backend(x, x, torch.zeros(1, 4, 2), torch.zeros(4, 4), torch.zeros(4), Cosine(), None)
        'eager'
    """
    fits = (
        query.is_cuda
        and isinstance(kernel, Cosine)
        and query.dim() == 4
        and key.shape == query.shape
        and query.dtype in DTYPES
        and query.stride(-1) == 1
        and key.stride(-1) == 1
        # The weights of both sides stay on chip; those of wide heads in float32 do not fit.
        and max(query.shape[-1], left.shape[-1]) <= (64 if query.dtype == torch.float32 else WIDEST)
        and left.dim() in (3, 4)
        and (join.dim(), bias.dim()) in ((2, 1), (3, 3))
        and (mask is None or (mask.dim() == 3 and mask.shape[1] == 1))
    )
    return "triton" if fits and HAS_TRITON else "eager"
