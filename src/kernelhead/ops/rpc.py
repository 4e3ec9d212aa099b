"""Principal Attention Pursuit as functions: check the axes once, pick a backend, then compute."""

import torch
from torch import Tensor

from kernelhead.errors import BadInput
from kernelhead.ops.backends import DTYPES, HAS_TRITON, on_cuda
from kernelhead.ops.eager import rpc as eager
from kernelhead.ops.eager.rpc import PursuitTrace, RPCState
from kernelhead.ops.pursuit import Pursuit
from kernelhead.ops.softmax import check_dropout
from kernelhead.shapes import check_axes, check_mask, check_size, zeroed

WIDEST = 512


def rpc_attention(
    key: Tensor,
    value: Tensor,
    *,
    pursuit: Pursuit,
    query: Tensor | None = None,
    mask: Tensor | None = None,
    causal: bool = False,
    dropout: float = 0.0,
) -> Tensor:
    r"""Attention inside a pursuit that splits keys into what it reproduces and a sparse part.

    With $\hat K_1 = P_1 = \mathrm{clip}_\tau(K)$ and $L_t$ the softmax attention of $\hat K_t$ to itself,

    $$ P_{t+1} = L_t + \mathrm{clip}_\tau(K + P_t - 2 L_t), \quad \hat K_{t+1} = P_{t+1} - 2 (P_t - L_t) $$

    or $\hat K_{t+1} = P_{t+1}$ for the journal's sign; the output is the last $L_t$. Each iteration costs one
    fused attention; no n-by-n matrix is held where PyTorch has a fused kernel. A gradient flows
    through tau. Causal attention with scope "sequence" leaks: tau of every point sees all keys.

    Shapes: key, value, query (b, h, n, d), mask (b, n), True where real; returns (b, h, n, d), zero at
    padded points, which count neither for tau nor as keys.

    Args:
        query: points that attend to the pursued keys; None for the symmetric form, where keys do.
        causal: whether point i sees the keys up to i only.
        dropout: probability of dropping an entry of the last pattern, drawn from the global generator.

    Raises:
        ShapeError: two axes disagree.
        BadInput: there is no point, the mask is not boolean, `dropout` is not in [0, 1), or the scope is
            "prefix" without `causal`.

    Example:
        >>> key, value = torch.randn(1, 2, 3, 4), torch.ones(1, 2, 3, 4)
        >>> float(rpc_attention(key, value, pursuit=Pursuit.corrected(2)).mean())
        1.0
    """
    who = "rpc_attention"
    _check(who, key, value, query, mask)
    _check_scope(who, pursuit, causal)
    check_dropout(who, dropout)
    update, opened = _kernels(key)
    return eager.rpc_attention(
        key,
        value,
        query,
        pursuit,
        mask=mask,
        causal=causal,
        dropout=dropout,
        update=update,
        opened=opened,
    )


def rpc_bounds(key: Tensor, *, pursuit: Pursuit, mask: Tensor | None = None) -> Tensor:
    """Tau, beyond which entries of the keys are clipped.

    Shapes: key (b, h, n, d), mask (b, n); returns (b, h, 1, 1), or (b, h, n, 1) for the scope "prefix", in
    float32 or better.

    Raises:
        ShapeError: two axes disagree.
        BadInput: there is no point, or the mask is not boolean.

    Example:
        >>> rpc_bounds(torch.full((1, 2, 3, 4), 0.5), pursuit=Pursuit.published(1, 4.0)).flatten()
        tensor([4., 4.])
        >>> rpc_bounds(torch.full((1, 2, 3, 4), 0.5), pursuit=Pursuit.corrected(1, 4.0)).flatten()
        tensor([8., 8.])
    """
    _check("rpc_bounds", key, key, None, mask)
    return eager.bounds(zeroed(key, None if mask is None else mask[:, None]), mask, pursuit)


def rpc_pattern(
    key: Tensor,
    value: Tensor,
    *,
    pursuit: Pursuit,
    query: Tensor | None = None,
    mask: Tensor | None = None,
    causal: bool = False,
) -> Tensor:
    """The entries of the pattern that the last iteration of `rpc_attention` applies, to look at.

    Shapes: as `rpc_attention`; returns (b, h, n, n), rows that sum to one, zero at padded keys and in rows
    that see no key.

    Raises:
        ShapeError: two axes disagree.
        BadInput: as `rpc_attention`.

    Example:
        >>> key, value = torch.zeros(1, 1, 2, 4), torch.ones(1, 1, 2, 4)
        >>> rpc_pattern(key, value, pursuit=Pursuit.corrected(3))
        tensor([[[[0.5000, 0.5000],
                  [0.5000, 0.5000]]]])
    """
    _check("rpc_pattern", key, value, query, mask)
    _check_scope("rpc_pattern", pursuit, causal)
    return eager.rpc_pattern(key, value, query, pursuit, mask=mask, causal=causal, update=_kernels(key)[0])


def rpc_start(
    batch: int,
    heads: int,
    width: int,
    *,
    pursuit: Pursuit,
    dtype: torch.dtype | None = None,
    device: torch.device | None = None,
) -> RPCState:
    """The state of sequences that have no point yet, to be fed to `rpc_step`.

    Args:
        batch: how many sequences, b.
        width: features of a point in a head, d.

    Raises:
        BadInput: a size is not a positive whole number, or the scope is not "prefix".

    Example:
        >>> rpc_start(1, 2, 4, pursuit=Pursuit.corrected(3, scope="prefix")).keys[2].shape
        torch.Size([1, 2, 0, 4])
    """
    for name, size in (("batch", batch), ("heads", heads), ("width", width)):
        check_size("rpc_start", name, size)
    _check_cached("rpc_start", pursuit)
    none = torch.empty(batch, heads, 0, width, dtype=dtype, device=device)
    kind = torch.promote_types(none.dtype, torch.float32)
    seen = torch.zeros(batch, dtype=torch.int64, device=device)
    return RPCState((none,) * pursuit.iterations, none, none.new_zeros(batch, heads, dtype=kind), seen)


def rpc_step(
    key: Tensor,
    value: Tensor,
    state: RPCState,
    *,
    pursuit: Pursuit,
    query: Tensor | None = None,
    mask: Tensor | None = None,
) -> tuple[Tensor, RPCState]:
    """More points for each sequence, one or a whole prompt; equals causal `rpc_attention` on all of them.

    With m points so far a new one costs O(t m d); the state holds t + 1 tensors for t iterations.

    Shapes: key, value, query (b, h, n, d), mask (b, n), True where real; returns (b, h, n, d) and the
    new state.

    Raises:
        ShapeError: two axes disagree.
        BadInput: the scope is not "prefix", or the state is of another number of iterations or shape.

    Example:
        >>> pursuit, x = Pursuit.corrected(2, scope="prefix"), torch.ones(1, 2, 1, 4)
        >>> output, state = rpc_step(x, x, rpc_start(1, 2, 4, pursuit=pursuit), pursuit=pursuit)
        >>> output.shape, state.seen
        (torch.Size([1, 2, 1, 4]), tensor([1]))
    """
    who = "rpc_step"
    _check(who, key, value, query, mask)
    _check_cached(who, pursuit)
    check_axes(who, state=(state.value, "b h m d"), key=(key, "b h n d"))
    if len(state.keys) != pursuit.iterations:
        raise BadInput(
            f"{who}: `state` has keys of {len(state.keys)} iterations, but `pursuit` has {pursuit.iterations}"
        )
    return eager.rpc_step(key, value, state, query, pursuit, mask=mask, update=_kernels(key)[0])


@torch.no_grad()
def rpc_trace(
    key: Tensor,
    value: Tensor,
    *,
    pursuit: Pursuit,
    query: Tensor | None = None,
    mask: Tensor | None = None,
    causal: bool = False,
) -> PursuitTrace:
    """What the iterations of `rpc_attention` do, to look at: patterns are written out, at O(n^2) memory.

    Shapes: as `rpc_attention`; returns a trace of (t, b, h) for t iterations.

    Raises:
        ShapeError: two axes disagree.
        BadInput: as `rpc_attention`.

    Example:
        >>> key = torch.tensor([0.1, -0.1, 0.1, 9.0])[None, None, :, None]
        >>> rpc_trace(key, key, pursuit=Pursuit.corrected(1, 0.5)).nonzero
        tensor([[[0.2500]]])
    """
    _check("rpc_trace", key, value, query, mask)
    _check_scope("rpc_trace", pursuit, causal)
    return eager.rpc_trace(key, value, query, pursuit, mask=mask, causal=causal)


def rpc_backend(key: Tensor) -> str:
    """ "triton" for heads of up to 512 features on a CUDA device in up to float32, else "eager".

    Example:
        >>> rpc_backend(torch.zeros(1, 1, 2, 4))
        'eager'
    """
    fits = on_cuda(key) and key.dtype in DTYPES and key.shape[-1] <= WIDEST
    return "triton" if fits and HAS_TRITON else "eager"


def _kernels(key: Tensor) -> tuple[eager.Update, eager.Opened | None]:
    """One step of the pursuit, and what begins it."""
    if rpc_backend(key) == "eager":
        return eager.update, None
    from kernelhead.ops.triton.rpc_library import opened, update

    return update, opened


def _check(who: str, key: Tensor, value: Tensor, query: Tensor | None, mask: Tensor | None) -> None:
    axes = {"key": (key, "b h n d"), "value": (value, "b h n d")}
    sizes = check_axes(who, **axes, **({} if query is None else {"query": (query, "b h n d")}))
    if sizes["n"] == 0:
        raise BadInput(f"{who}: `key` {tuple(key.shape)} has no points, expected one or more")
    check_mask(who, mask, key[:, 0])


def _check_scope(who: str, pursuit: Pursuit, causal: bool) -> None:
    if pursuit.scope == "prefix" and not causal:
        raise BadInput(f'{who}: the scope "prefix" needs causal=True, for other attention has no prefix')


def _check_cached(who: str, pursuit: Pursuit) -> None:
    if pursuit.scope != "prefix":
        raise BadInput(
            f'{who}: the scope is "{pursuit.scope}", expected "prefix": a new point would change tau of all'
        )
