"""The iterated inverse of small matrices: one program takes all steps of one, which never leave the chip.

Factors are split into three numbers of eight bits each, whose products lose no more than float32 does and
run on tensor cores. The gradient goes through the steps backwards, from the state before each, which is
kept; what a step makes of it is made again. A matrix is filled up with zeros to a block: there all states
stay zero, and nothing else is changed.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernelhead.ops.triton.parts import block_of

WARPS = {16: 1, 32: 4, 64: 4}  # that work on a matrix of a block
KIND = tl.bfloat16  # of the numbers that a factor is split into
# Of a number's bits: what rounds it to eight, and those that then stay.
HALF = tl.constexpr(1 << 15)
STAY = tl.constexpr(-(1 << 16))
LONG = tl.constexpr(64)  # numbers that a tensor core would sum too carelessly at once
APART = tl.constexpr(1)  # keeps the compiler from making a sum the start of a product


@triton.jit
def _rounded(entries):
    """The nearest numbers of eight bits."""
    return ((entries.to(tl.int32, bitcast=True) + HALF) & STAY).to(tl.float32, bitcast=True)


@triton.jit
def _split(entries, KIND: tl.constexpr):
    """Three numbers of eight bits each whose sum is an entry."""
    first = _rounded(entries)
    rest = entries - first
    second = _rounded(rest)
    return first.to(KIND), second.to(KIND), (rest - second).to(KIND)


@triton.jit
def _product(left, right, KIND: tl.constexpr):
    """left right, smallest parts first, without those that are lost in float32."""
    a, b, c = _split(left, KIND)
    d, e, f = _split(right, KIND)
    made = tl.dot(c, d, input_precision="ieee")
    made = tl.dot(b, e, made, input_precision="ieee")
    made = tl.dot(a, f, made, input_precision="ieee")
    made = tl.dot(b, d, made, input_precision="ieee")
    made = tl.dot(a, e, made, input_precision="ieee")
    if left.shape[1] < LONG:
        return tl.dot(a, d, made, input_precision="ieee")
    # What is added beside a large number loses bits in a tensor core: each half is summed by itself.
    early = (tl.arange(0, left.shape[1]) < left.shape[1] // 2)[None, :]
    nothing = tl.zeros(a.shape, KIND)
    made += tl.dot(tl.where(early, a, nothing), d, input_precision="ieee", max_num_imprecise_acc=APART)
    made += tl.dot(tl.where(early, nothing, a), d, input_precision="ieee", max_num_imprecise_acc=APART)
    return made


@triton.jit
def _taken(start, S: tl.constexpr, BLOCK: tl.constexpr):
    """A matrix, zero where it has no entries; read again each time, as registers are few."""
    lane = tl.arange(0, BLOCK)
    inside = (lane < S)[:, None] & (lane < S)[None, :]
    return tl.load(start + lane[:, None] * S + lane[None, :], mask=inside, other=0.0, volatile=True)


@triton.jit
def _put(start, made, S: tl.constexpr, BLOCK: tl.constexpr):
    lane = tl.arange(0, BLOCK)
    inside = (lane < S)[:, None] & (lane < S)[None, :]
    tl.store(start + lane[:, None] * S + lane[None, :], made, mask=inside)


@triton.jit
def _less(size, made, BLOCK: tl.constexpr):
    """A multiple of the identity less a matrix."""
    lane = tl.arange(0, BLOCK)
    return tl.where(lane[:, None] == lane[None, :], size - made, -made)


@triton.jit
def _forward(
    matrix, largest, inverse, kept, iterations,
    KEEP: tl.constexpr, S: tl.constexpr, BLOCK: tl.constexpr, KIND: tl.constexpr,
):  # fmt: skip
    """All steps from the transpose over `largest`; the state before each is kept, if wanted."""
    mine = tl.program_id(0).to(tl.int64) * S * S
    apart = tl.num_programs(0).to(tl.int64) * S * S
    state = tl.trans(_taken(matrix + mine, S, BLOCK)) / tl.load(largest + tl.program_id(0))
    for step in range(iterations):
        if KEEP:
            _put(kept + apart * step + mine, state, S, BLOCK)
        near = _product(_taken(matrix + mine, S, BLOCK), state, KIND)
        made = _product(_less(7, near, BLOCK), near, KIND)
        made = _product(_less(15, made, BLOCK), near, KIND)
        state = _product(state, _less(13, made, BLOCK), KIND) * 0.25
    _put(inverse + mine, state, S, BLOCK)


@triton.jit
def _backward(
    matrix, largest, kept, grad, pull, share, iterations,
    S: tl.constexpr, BLOCK: tl.constexpr, KIND: tl.constexpr,
):  # fmt: skip
    """Gradients of a matrix and of what its transpose was divided by.

    With N = A Z a step multiplies Z by (13 - 15 N + 7 N^2 - N^3) / 4. All gradients are held transposed: then
    no factor is. The sum over steps waits in `pull`, as registers do not hold it, too.
    """
    mine = tl.program_id(0).to(tl.int64) * S * S
    apart = tl.num_programs(0).to(tl.int64) * S * S
    above = tl.trans(_taken(grad + mine, S, BLOCK))
    _put(pull + mine, tl.zeros([BLOCK, BLOCK], tl.float32), S, BLOCK)
    for step in range(iterations):
        before = kept + apart * (iterations - 1 - step) + mine
        state = _taken(before, S, BLOCK)
        outer = _product(above, state, KIND) * 0.25
        near = _product(_taken(matrix + mine, S, BLOCK), state, KIND)
        made = _product(_less(7, near, BLOCK), near, KIND)
        made = _product(_less(15, made, BLOCK), near, KIND)
        above = _product(_less(13, made, BLOCK), above, KIND) * 0.25
        first = _product(outer, near, KIND)
        both = first + _product(near, outer, KIND)
        outer = 7 * both - 15 * outer
        outer -= _product(near, both, KIND)
        outer -= _product(first, near, KIND)
        total = _product(_taken(before, S, BLOCK), outer, KIND)
        # A thread may read what another wrote, and write what another is to read.
        tl.debug_barrier()
        total += _taken(pull + mine, S, BLOCK)
        tl.debug_barrier()
        _put(pull + mine, total, S, BLOCK)
        above += _product(outer, _taken(matrix + mine, S, BLOCK), KIND)
    scale = tl.load(largest + tl.program_id(0))
    along = tl.sum(tl.sum(above * _taken(matrix + mine, S, BLOCK), axis=1), axis=0)
    tl.store(share + tl.program_id(0), -along / (scale * scale))
    tl.debug_barrier()
    total = tl.trans(_taken(pull + mine, S, BLOCK)) + above / scale
    tl.debug_barrier()
    _put(pull + mine, total, S, BLOCK)


def forward(matrix: Tensor, largest: Tensor, iterations: int, keep: bool) -> tuple[Tensor, Tensor]:
    """The inverse after some steps, and the state before each step.

    Shapes: matrix (... s s) in float32, s up to 64, and largest (...), contiguous; returns (... s s) and
    (i, ... s s), of no steps if they are not kept.

    Args:
        matrix: positive, its rows sum to one.
        largest: what the transpose is divided by to begin with.
        iterations: steps i.
        keep: whether `backward` is to come.
    """
    s = matrix.shape[-1]
    block = block_of(s)
    inverse, kept = torch.empty_like(matrix), matrix.new_empty((iterations if keep else 0, *matrix.shape))
    _forward[(largest.numel(),)](
        matrix, largest, inverse, kept, iterations,
        KEEP=keep, S=s, BLOCK=block, KIND=KIND, num_warps=WARPS[block], num_stages=1,
    )  # fmt: skip
    return inverse, kept


def backward(matrix: Tensor, largest: Tensor, kept: Tensor, grad: Tensor) -> tuple[Tensor, Tensor]:
    """Gradients of the matrix and of `largest`, each as if the other were none of its.

    Shapes: as for `forward`; grad (... s s), contiguous; returns (... s s) and (...).
    """
    s = matrix.shape[-1]
    block = block_of(s)
    pull, share = torch.empty_like(matrix), torch.empty_like(largest)
    _backward[(largest.numel(),)](
        matrix, largest, kept, grad, pull, share, len(kept),
        S=s, BLOCK=block, KIND=KIND, num_warps=WARPS[block], num_stages=1,
    )  # fmt: skip
    return pull, share
