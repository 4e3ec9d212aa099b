"""The parts that every network here is made of: a block, its feed-forward, its positions."""

from collections.abc import Callable
from math import log
from typing import Any

import torch
from torch import Tensor, nn

from kernelhead.errors import BadInput, unknown
from kernelhead.nn import AbstractKernelAttention, Dropout, LocalMixing, PrimalAttention
from kernelhead.nn.hooks import is_hooked, is_plain
from kernelhead.ops import feed_forward
from kernelhead.ops.backends import feed_forward_backend

NORMS = ("pre", "post")
POSITIONS = ("sinusoidal", "learned", "none")
PARTS = [nn.Linear, nn.GELU, Dropout, nn.Linear, Dropout]  # of a feed-forward, as built, and what follows


class Block(nn.Module):
    """An attention and a feed-forward, each with residual, layer norm and dropout; before them what is local.

    Shapes: x (b, n, c), mask (b, n); returns (b, n, c).

    Args:
        attention: the attention, of the block's width; None for what is local alone.
        inner: width of the feed-forward's middle.
        norm: "pre" (norm, then the part) or "post" (the residual sum is normed).
        dropout: on what each part adds.
        drop_path: probability with which a part adds nothing to a whole sample, in training.
        local: mixes neighbours before the attention does; another part with residual and norm.

    Raises:
        UnknownName: no such norm.
        BadInput: `drop_path` is not in [0, 1), or there is nothing that mixes points.

    Example:
        >>> from kernelhead.nn import SoftmaxAttention
        >>> Block(SoftmaxAttention(8, heads=2), inner=16)(torch.zeros(1, 3, 8)).shape
        torch.Size([1, 3, 8])
    """

    def __init__(
        self,
        attention: AbstractKernelAttention | None,
        *,
        inner: int,
        norm: str = "pre",
        dropout: float = 0.0,
        drop_path: float = 0.0,
        local: LocalMixing | None = None,
    ) -> None:
        super().__init__()
        if norm not in NORMS:
            raise unknown("Block", "norm", norm, NORMS)
        if not 0 <= drop_path < 1:
            raise BadInput(f"Block: drop_path is {drop_path!r}, expected a number in [0, 1)")
        mixing = local if attention is None else attention
        if mixing is None:
            raise BadInput("Block: no attention and nothing local, expected one of them")
        width = mixing.width
        self.norm, self.attention, self.drop_path = norm, attention, drop_path
        if attention is not None:
            self.attention_norm = nn.LayerNorm(width)
        self.forward_norm = nn.LayerNorm(width)
        self.local = local
        if local is not None:
            self.local_norm = nn.LayerNorm(width)
        self.dropout = Dropout(dropout)
        self.feed_forward = nn.Sequential(
            nn.Linear(width, inner), nn.GELU(), Dropout(dropout), nn.Linear(inner, width)
        )

    def forward(self, x: Tensor, *, mask: Tensor | None = None, padded: bool = False) -> Tensor:
        """Mix neighbours where that is wanted, attend, then feed forward.

        Args:
            x: points.
            mask: which of them are real.
            padded: whether a primal attention takes the others for real too, and adds its last bias to
                them, as the released layers do.
        """
        if self.local is not None:
            shown = self.local_norm(x) if self.norm == "pre" else x
            x = x + self._added(self.local(shown, mask=mask))
            x = x if self.norm == "pre" else self.local_norm(x)
        attention = self.attention
        if attention is None:
            return self._fed(x)
        if mask is None or not (padded and isinstance(attention, PrimalAttention)):
            return self.around(lambda points: attention(points, mask=mask), x)
        real, bias = mask.unsqueeze(-1), attention.out.bias
        return self.around(lambda points: torch.where(real, attention(points), bias), x)

    def around(self, attend: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
        """The block with another way to attend, such as one step of decoding.

        Shapes: x (b, n, c) or (b, c), as `attend` takes it; returns the same.
        """
        if self.norm == "pre":
            return self._fed(x + self._added(attend(self.attention_norm(x))))
        return self._fed(self.attention_norm(x + self._added(attend(x))))

    def _fed(self, x: Tensor) -> Tensor:
        if x.is_cuda and self._is_one_kernel(x):
            norm = self.forward_norm
            enter, leave = (each for each in self.feed_forward if isinstance(each, nn.Linear))
            return feed_forward(
                x,
                (norm.weight, norm.bias),
                (enter.weight, enter.bias),
                (leave.weight, leave.bias),
                dropout=self.dropout.p if self.training else 0.0,
                epsilon=norm.eps,
            )
        if self.norm == "pre":
            return x + self._added(self.feed_forward(self.forward_norm(x)))
        made: Tensor = self.forward_norm(x + self._added(self.feed_forward(x)))
        return made

    def _is_one_kernel(self, x: Tensor) -> bool:
        """Whether the feed-forward is what one kernel does, with parts as built that nobody looks at."""
        if self.norm != "pre" or (self.training and self.drop_path):
            return False
        parts: list[Any] = [*self.feed_forward.children(), self.dropout]
        looked_into = any(map(is_hooked, (self.forward_norm, self.feed_forward, *parts)))
        if looked_into or type(self.forward_norm) is not nn.LayerNorm or [*map(type, parts)] != PARTS:
            return False
        enter, bend, thin, leave, last = parts
        alike = bend.approximate == "none" and thin.p == last.p < 1
        return alike and is_plain(enter, leave) and feed_forward_backend(x, enter.weight) == "triton"

    def _added(self, part: Tensor) -> Tensor:
        part = self.dropout(part)
        if not (self.training and self.drop_path):
            return part
        kept = part.new_empty(part.shape[:1] + (1,) * (part.dim() - 1)).bernoulli_(1 - self.drop_path)
        return part * (kept / (1 - self.drop_path))


class Positions(nn.Module):
    """Adds to every point a vector for its place.

    Shapes: x (b, n, c), its first point at place `first`; returns the same.

    Args:
        width: features of a point.
        kind: "sinusoidal" for any length, "learned" up to `longest`, or "none".
        longest: most points that learned positions serve.

    Raises:
        UnknownName: no such kind.
        BadInput: learned positions are asked for more points than they have.
    """

    def __init__(self, width: int, *, kind: str = "sinusoidal", longest: int = 0) -> None:
        super().__init__()
        if kind not in POSITIONS:
            raise unknown("Positions", "kind", kind, POSITIONS)
        self.kind = kind
        if kind == "learned":
            self.table = nn.Parameter(torch.empty(longest, width).uniform_(-0.02, 0.02))

    def forward(self, x: Tensor, *, first: int = 0) -> Tensor:
        """Add the positions."""
        if self.kind == "none":
            return x
        last = first + x.shape[1]
        if self.kind == "sinusoidal":
            return x + sinusoids(x.shape[1], x.shape[2], x.device, first=first).to(x.dtype)
        if last > self.table.shape[0]:
            raise BadInput(
                f"Positions: {last} points, but positions were learned for {self.table.shape[0]}; "
                "use position='sinusoidal' for any length"
            )
        return x + self.table[first:last]


def sinusoids(length: int, width: int, device: torch.device | None = None, *, first: int = 0) -> Tensor:
    """Sines and cosines of geometric frequencies, (length, width), from place `first` on.

    Example:
        >>> sinusoids(2, 4)[0]
        tensor([0., 1., 0., 1.])
    """
    half = (width + 1) // 2
    rate = torch.exp(torch.arange(half, device=device) * (-log(10_000.0) / max(half, 1)))
    phase = torch.arange(first, first + length, device=device)[:, None] * rate
    return torch.stack([phase.sin(), phase.cos()], dim=-1).flatten(1)[:, :width]
