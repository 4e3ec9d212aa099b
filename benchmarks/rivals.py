"""The rivals of our cores in their fastest writing: plain bf16 to be compiled, fused kernels, and fla's.

Shapes: query, key, value (b, h, n, d) unless said otherwise.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

BACKENDS = {"flash": SDPBackend.FLASH_ATTENTION, "cuDNN": SDPBackend.CUDNN_ATTENTION}
PART = 1024  # points that one product sums over: few long products would leave most of the device idle


def compiled(run: Callable[..., Any]) -> Callable[..., Any]:
    """The rival under torch.compile, for one shape."""
    return torch.compile(run, dynamic=False)


def sdpa(backend: str, *, causal: bool = False, calls: int = 1) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    """Softmax attention by one fused kernel only; several calls feed each output on as values."""

    def run(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        with sdpa_kernel(BACKENDS[backend]):
            for _ in range(calls):
                value = F.scaled_dot_product_attention(query, key, value, is_causal=causal)
        return value

    return run


def primal_moments(
    query: Tensor, key: Tensor, left: Tensor, right: Tensor, join: Tensor, bias: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """The primal core with the second moments of both scores: what `ops.primal_attention_moments` gives."""
    scores = F.normalize(query, dim=-1) @ left, F.normalize(key, dim=-1) @ right
    output = torch.cat(scores, -1) @ join.mT + bias
    return output, scores[0].square().mean(-2), scores[1].square().mean(-2)


def linear(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Linear attention with the features elu + 1."""
    return _weighted_means(F.elu(query) + 1, F.elu(key) + 1, value)


def performer(query: Tensor, key: Tensor, value: Tensor, frequencies: Tensor) -> Tensor:
    """Linear attention with positive random features, frequencies (p, d)."""
    left, right = (_exponents(side, frequencies) for side in (query, key))
    left = (left - left.detach().amax(-1, keepdim=True)).exp()
    right = (right - right.detach().amax((-2, -1), keepdim=True)).exp()
    return _weighted_means(left, right, value)


def nystrom(query: Tensor, key: Tensor, value: Tensor, *, landmarks: int = 64, iterations: int = 6) -> Tensor:
    """Softmax attention through the means of as many segments as there are landmarks."""
    query = query * query.shape[-1] ** -0.5
    left_marks, right_marks = (side.unflatten(-2, (landmarks, -1)).mean(-2) for side in (query, key))
    among = (left_marks @ right_marks.mT).softmax(-1)
    eye = torch.eye(landmarks, dtype=query.dtype, device=query.device)
    inverse = among.mT / among.sum(-2).amax(-1)[..., None, None]
    for _ in range(iterations):
        near = among @ inverse
        inverse = inverse @ (13 * eye - near @ (15 * eye - near @ (7 * eye - near))) / 4
    gathered = _long_product((left_marks @ key.mT).softmax(-1).mT, value)
    return (query @ right_marks.mT).softmax(-1) @ (inverse @ gathered)


def causal_linear(query: Tensor, key: Tensor, value: Tensor, *, chunk: int = 128) -> Tensor:
    """Causal linear attention with the features elu + 1: triangles in chunks, sums before them."""
    left, right, value = (
        side.unflatten(-2, (-1, chunk)) for side in (F.elu(query) + 1, F.elu(key) + 1, value)
    )  # (b, h, g, chunk, d)
    inside = (left @ right.mT).tril()
    before, total = _earlier(right.mT @ value), _earlier(right.sum(-2, keepdim=True))
    weight = inside.sum(-1, keepdim=True) + (left * total).sum(-1, keepdim=True)
    return ((inside @ value + left @ before) / weight).flatten(-3, -2)


def fla_linear(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """fla's chunked causal linear attention, neither with features nor normalised; (b, n, h, d).

    Raises:
        ImportError: fla is not on the path.
    """
    from fla.ops.linear_attn import chunk_linear_attn

    output: Tensor = chunk_linear_attn(query, key, value, normalize=False)[0]
    return output


def share_fla(part: int, parts: int) -> None:
    """Let fla's kernels know one share of their settings only: several processes compile them all."""
    from fla.ops.common import chunk_h, chunk_o
    from triton.runtime.autotuner import Autotuner, Heuristics

    for kernel in (*vars(chunk_h).values(), *vars(chunk_o).values()):
        tuned = kernel.fn if isinstance(kernel, Heuristics) else kernel
        if isinstance(tuned, Autotuner):
            tuned.configs = tuned.configs[part::parts] or tuned.configs[:1]
            # A choice among a share, on a busy device, is no choice to keep.
            tuned.cache_results = False


def _weighted_means(left: Tensor, right: Tensor, value: Tensor) -> Tensor:
    weight = (left * right.sum(-2, keepdim=True)).sum(-1, keepdim=True)
    return left @ _long_product(right, value) / weight


def _long_product(left: Tensor, right: Tensor) -> Tensor:
    """left' right over many points, (... n p) and (... n e) to (... p e)."""
    part = min(PART, left.shape[-2])
    left, right = left.unflatten(-2, (-1, part)), right.unflatten(-2, (-1, part))
    return (left.mT @ right).sum(-3)


def _exponents(points: Tensor, frequencies: Tensor) -> Tensor:
    points = points * points.shape[-1] ** -0.25
    return points @ frequencies.mT - points.square().sum(-1, keepdim=True) / 2


def _earlier(chunks: Tensor) -> Tensor:
    """Sums over the chunks before each, along the third axis from the end."""
    return F.pad(chunks, (0, 0, 0, 0, 1, 0))[..., :-1, :, :].cumsum(-3)


def depthwise(x: Tensor, weight: Tensor, bias: Tensor, *, dilation: int) -> Tensor:
    """Mixing of neighbours as a depthwise convolution: x (b, c, n), weight (k, c), an odd number of taps."""
    taps, width = weight.shape
    reach = taps // 2 * dilation
    return F.conv1d(x, weight.mT.unsqueeze(1), bias, padding=reach, dilation=dilation, groups=width)


def depthwise_rows(x: Tensor, weight: Tensor, bias: Tensor, *, dilation: int) -> Tensor:
    """The same with points as rows, x (b, n, c), as the rest of a Transformer has them."""
    return depthwise(x.mT, weight, bias, dilation=dilation).mT.contiguous()


def shifted(x: Tensor, weight: Tensor, bias: Tensor, *, dilation: int) -> Tensor:
    """The same as a sum of shifted points, which a compiler makes one kernel of."""
    n, reach = x.shape[1], len(weight) // 2 * dilation
    padded = F.pad(x, (0, 0, reach, reach))
    made = bias.expand_as(x)
    for tap, row in enumerate(weight):
        made = made + row * padded[:, tap * dilation : tap * dilation + n]
    return made
