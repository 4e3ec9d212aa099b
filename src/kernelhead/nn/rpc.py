"""Attention of keys to keys, plain and inside a pursuit that splits off what is sparse in them."""

from torch import Tensor, nn

from kernelhead.errors import BadInput, unknown
from kernelhead.nn.base import AbstractKernelAttention, Attended, check_heads
from kernelhead.nn.heads import merge_heads, split_heads
from kernelhead.nn.maps import mapped
from kernelhead.nn.softmax import AbstractSoftmaxAttention, project, without_padding
from kernelhead.ops import (
    Pursuit,
    PursuitTrace,
    RPCState,
    rpc_attention,
    rpc_pattern,
    rpc_start,
    rpc_step,
    rpc_trace,
)
from kernelhead.ops.softmax import check_dropout
from kernelhead.pattern import Dense
from kernelhead.shapes import zeroed

PRESETS = {"published": Pursuit.published, "corrected": Pursuit.corrected}


class RPCAttention(AbstractKernelAttention):
    r"""Attention of keys to themselves, inside a pursuit that splits off what is sparse in them.

    Every iteration clips the keys, lets them attend and moves them by what attention did not reproduce;
    see `rpc_attention`. Time grows as t n^2 for t iterations. Released layers have no queries: the
    symmetric form is theirs, and the one with `query` is derived. A released projection to keys and
    values, of weight (2 c, c) and channels (2, h, d), holds `key` in its first c rows and `value` in
    the others, with heads in the same order. A recorded pattern is that of the last iteration, before
    dropout. It takes no context.

    Shapes: x (b, n, c), one point a row; mask (b, n), True where real; returns (b, n, c).

    Args:
        width: features of a point, c.
        heads: heads h; must divide `width`.
        iterations: attentions t; one is attention of clipped keys.
        strength: lambda, the preset's if None: 4 published, 0.75 corrected.
        preset: "published", the released code, or "corrected", the pursuit as its journal version has it.
        symmetric: whether keys attend to keys; else queries do, which no released layer has.
        causal: whether a point sees itself and those before it only.
        dropout: probability with which an entry of the last pattern is dropped in training.
        sign: of the dual variable, "preprint" or "journal"; the preset's if None.
        threshold: "times_mu" or "over_mu"; the preset's if None.
        mu_width: what mu counts, "embed" or "head"; the preset's if None.
        scope: keys that mean|K| is taken over; if None "prefix" where causal, else "sequence". A causal
            layer with "sequence" leaks: the bound of a point sees the keys after it.

    Raises:
        BadInput: the heads do not divide the width, a number is out of its range, or the scope is
            "prefix" and the layer not causal.
        UnknownName: no such preset, or a switch has no such position.

    Example:
        >>> import torch
        >>> layer = RPCAttention(8, heads=2, iterations=3, preset="corrected")
        >>> layer(torch.zeros(1, 5, 8)).shape
        torch.Size([1, 5, 8])
        >>> layer.pursuit.strength
        0.75
    """

    def __init__(
        self,
        width: int,
        *,
        heads: int,
        iterations: int = 4,
        strength: float | None = None,
        preset: str = "published",
        symmetric: bool = True,
        causal: bool = False,
        dropout: float = 0.0,
        sign: str | None = None,
        threshold: str | None = None,
        mu_width: str | None = None,
        scope: str | None = None,
    ) -> None:
        super().__init__()
        who = "RPCAttention"
        check_heads(who, width, heads)
        check_dropout(who, dropout)
        if preset not in PRESETS:
            raise unknown(who, "preset", preset, PRESETS)
        if scope == "prefix" and not causal:
            raise BadInput(f'{who}: the scope "prefix" needs causal=True, for other attention has no prefix')
        base = PRESETS[preset](iterations)
        self.pursuit = Pursuit(
            iterations,
            base.strength if strength is None else strength,
            sign=sign or base.sign,
            threshold=threshold or base.threshold,
            width=mu_width or base.width,
            scope=scope or ("prefix" if causal else "sequence"),
            guard=base.guard,
        )
        self.width, self.heads, self.causal, self.dropout = width, heads, causal, dropout
        self.key, self.value = nn.Linear(width, width), nn.Linear(width, width)
        self.query = None if symmetric else nn.Linear(width, width)
        self.out = nn.Linear(width, width)

    def extra_repr(self) -> str:
        """What the projections do not show."""
        return f"heads={self.heads}, causal={self.causal}, {self.pursuit}"

    def attend(
        self,
        x: Tensor,
        *,
        mask: Tensor | None,
        context: Tensor | None,
        context_mask: Tensor | None,
        keep: str,
    ) -> Attended:
        """The pursuit in every head."""
        refuse_context(self, context, "it compares each key with what attention makes of that very point")
        query, key, value = self._project(x)
        pursuit, causal, dropout = self.pursuit, self.causal, self.dropout if self.training else 0.0
        mixed = rpc_attention(
            key, value, pursuit=pursuit, query=query, mask=mask, causal=causal, dropout=dropout
        )
        pattern = None
        if keep == "patterns":
            entries = rpc_pattern(key, value, pursuit=pursuit, query=query, mask=mask, causal=causal)
            pattern = without_padding(Dense(entries), mask)
        return Attended(mapped(merge_heads(mixed), self.out)[0], pattern=pattern)

    def trace(self, x: Tensor, *, mask: Tensor | None = None) -> PursuitTrace:
        """What every iteration does in every head, at O(n^2) memory: sparsity, sizes, collapse.

        Shapes: x (b, n, c), mask (b, n); returns a trace of (t, b, h).

        Raises:
            BadInput: `x` or the mask does not fit the layer.

        Example:
            >>> import torch
            >>> RPCAttention(8, heads=2, iterations=3).trace(torch.randn(1, 5, 8)).nonzero.shape
            torch.Size([3, 1, 2])
        """
        self._check("RPCAttention.trace", x, mask, "x", "mask")
        query, key, value = self._project(zeroed(x, mask))
        return rpc_trace(key, value, pursuit=self.pursuit, query=query, mask=mask, causal=self.causal)

    def start(self, batch: int) -> RPCState:
        """The state of a causal layer before the first point of `batch` sequences.

        Raises:
            BadInput: the layer is not causal, or its scope is not "prefix".
        """
        self._check_causal()
        kind, head = self.key.weight, self.width // self.heads
        return rpc_start(batch, self.heads, head, pursuit=self.pursuit, dtype=kind.dtype, device=kind.device)

    def step(self, x: Tensor, state: RPCState, *, mask: Tensor | None = None) -> tuple[Tensor, RPCState]:
        """One more point for each sequence, or a prompt of n; equals the parallel form.

        With m points so far a point costs O(t m c); the state holds t + 1 tensors of m points.

        Shapes: x (b, c) or (b, n, c), mask (b,) or (b, n), True where real; returns the shape of x and the
        new state.

        Raises:
            BadInput: the layer is not causal, its scope is not "prefix", or `x` does not fit.

        Example:
            >>> import torch
            >>> layer = RPCAttention(8, heads=2, causal=True)
            >>> out, state = layer.step(torch.zeros(3, 8), layer.start(3))
            >>> out.shape, state.seen
            (torch.Size([3, 8]), tensor([1, 1, 1]))
        """
        self._check_step(x, state.seen.shape[0], mask, prompts=True)
        one = x.dim() == 2
        real = mask.unsqueeze(1) if mask is not None and one else mask
        query, key, value = self._project(zeroed(x.unsqueeze(1) if one else x, real))
        mixed, state = rpc_step(key, value, state, pursuit=self.pursuit, query=query, mask=real)
        output = zeroed(self.out(merge_heads(mixed)), real)
        return output[:, 0] if one else output, state

    def _project(self, x: Tensor) -> tuple[Tensor | None, Tensor, Tensor]:
        """Queries, if there are any, keys and values, each (b, h, n, d)."""
        layers = [layer for layer in (self.query, self.key, self.value) if layer is not None]
        *query, key, value = (split_heads(each, self.heads) for each in mapped(x, *layers))
        return query[0] if query else None, key, value


class SymmetricAttention(AbstractSoftmaxAttention):
    r"""Softmax attention of keys to themselves, $\mathrm{softmax}(K K^\top / \sqrt d) V$, without queries.

    It is what models with RPC-Attention have in their other layers, and the rival of that. Time grows as
    n^2. It takes no context.

    Shapes: x (b, n, c), one point a row; mask (b, n), True where real; returns (b, n, c).

    Args:
        width: features of a point, c.
        heads: heads h; must divide `width`.
        causal: whether a point sees itself and those before it only.
        dropout: probability with which an entry of the pattern is dropped in training.

    Raises:
        BadInput: the heads do not divide the width, or `dropout` is not in [0, 1).

    Example:
        >>> import torch
        >>> SymmetricAttention(8, heads=2)(torch.zeros(1, 3, 8)).shape
        torch.Size([1, 3, 8])
    """

    def __init__(self, width: int, *, heads: int, causal: bool = False, dropout: float = 0.0) -> None:
        super().__init__(width, heads, causal, dropout, queries=False)

    def attend(
        self,
        x: Tensor,
        *,
        mask: Tensor | None,
        context: Tensor | None,
        context_mask: Tensor | None,
        keep: str,
    ) -> Attended:
        """Symmetric attention in every head."""
        refuse_context(self, context, "its keys attend to themselves")
        return self._attend_sides(project(self, x, mask, None, None), mask, keep)


def refuse_context(layer: nn.Module, context: Tensor | None, reason: str) -> None:
    """Refuse a context where attention is of points to themselves.

    Raises:
        BadInput: there is a context.

    Example:
        >>> refuse_context(SymmetricAttention(8, heads=2), None, "its keys attend to themselves")
    """
    if context is not None:
        raise BadInput(
            f"{type(layer).__name__}: takes no `context`, for {reason}, got {tuple(context.shape)}"
        )
