"""The iterated inverse of small matrices: one program takes all steps of one.

Factors are split into three numbers of eight bits each, whose products lose no more than float32 does and
run on tensor cores. The gradient goes through the steps backwards, from what is kept of each: the state
before it, the matrix times that, and what the state is multiplied by. A matrix is filled up with zeros to a
block: there all states stay zero, and nothing else is changed.
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
# Two numbers become three pairs: each is what is left, rounded.
SPLIT = tl.constexpr("""{
    .reg .b32 bits;
    .reg .f32 low, high, rounded;
    cvt.rn.bf16x2.f32 $0, $4, $3;
    shl.b32 bits, $0, 16;
    mov.b32 rounded, bits;
    sub.rn.f32 low, $3, rounded;
    and.b32 bits, $0, 0xffff0000;
    mov.b32 rounded, bits;
    sub.rn.f32 high, $4, rounded;
    cvt.rn.bf16x2.f32 $1, high, low;
    shl.b32 bits, $1, 16;
    mov.b32 rounded, bits;
    sub.rn.f32 low, low, rounded;
    and.b32 bits, $1, 0xffff0000;
    mov.b32 rounded, bits;
    sub.rn.f32 high, high, rounded;
    cvt.rn.bf16x2.f32 $2, high, low;
}""")


@triton.jit
def _rounded(entries):
    """The nearest numbers of eight bits."""
    return ((entries.to(tl.int32, bitcast=True) + HALF) & STAY).to(tl.float32, bitcast=True)


@triton.jit
def _split(entries, KIND: tl.constexpr):
    """Three numbers of eight bits each whose sum is an entry."""
    if tl.bfloat16 == KIND:
        # Called impure: else the compiler splits anew for each layout and keeps what is to be read again.
        return tl.inline_asm_elementwise(
            SPLIT, "=&r,=&r,=&r,r,r", [entries], (tl.bfloat16, tl.bfloat16, tl.bfloat16), False, 2
        )
    first = _rounded(entries)
    rest = entries - first
    second = _rounded(rest)
    return first.to(KIND), second.to(KIND), (rest - second).to(KIND)


@triton.jit
def _right(parts):
    """A right factor's parts as `_product` takes them."""
    a, b, c = parts
    BLOCK: tl.constexpr = a.shape[0]
    even, odd = a, a
    if BLOCK >= LONG:
        by_eight = tl.permute(tl.reshape(a, (BLOCK // 16, 2, 8, BLOCK)), (0, 2, 3, 1))
        even, odd = tl.split(tl.reshape(by_eight, (BLOCK // 2, BLOCK, 2)))
    return a, b, c, even, odd


@triton.jit
def _product(left, right):
    """left right, smallest parts first, without those that are lost in float32."""
    a, b, c = left
    d, e, f, upper, lower = right
    BLOCK: tl.constexpr = a.shape[0]
    made = tl.dot(a, f, input_precision="ieee")
    made = tl.dot(c, d, made, input_precision="ieee")
    made = tl.dot(b, e, made, input_precision="ieee")
    made = tl.dot(b, d, made, input_precision="ieee")
    made = tl.dot(a, e, made, input_precision="ieee")
    if BLOCK < LONG:
        made = tl.dot(a, upper, made, input_precision="ieee")
    else:
        # What is added beside a large number loses bits in a tensor core: each half is summed by itself.
        # Halves are every other eight, as a thread holds some of both.
        by_eight = tl.permute(tl.reshape(a, (BLOCK, BLOCK // 16, 2, 8)), (0, 1, 3, 2))
        even, odd = tl.split(tl.reshape(by_eight, (BLOCK, BLOCK // 2, 2)))
        made += tl.dot(even, upper, input_precision="ieee", max_num_imprecise_acc=APART)
        made += tl.dot(odd, lower, input_precision="ieee", max_num_imprecise_acc=APART)
    return made


@triton.jit
def _taken(start, S: tl.constexpr, BLOCK: tl.constexpr):
    """A matrix, zero where it has no entries."""
    lane = tl.arange(0, BLOCK)
    inside = (lane < S)[:, None] & (lane < S)[None, :]
    return tl.load(start + lane[:, None] * S + lane[None, :], mask=inside, other=0.0)


@triton.jit
def _put(start, made, S: tl.constexpr, BLOCK: tl.constexpr):
    lane = tl.arange(0, BLOCK)
    inside = (lane < S)[:, None] & (lane < S)[None, :]
    tl.store(start + lane[:, None] * S + lane[None, :], made, mask=inside)


@triton.jit
def _arranged(kept, BLOCK: tl.constexpr):
    """What `_keep` put in its order, as a matrix."""
    kept = tl.reshape(kept, (BLOCK // 8, BLOCK // 16, 8, 4, 2, 2))
    return tl.reshape(tl.permute(kept, (1, 4, 2, 0, 3, 5)), (BLOCK, BLOCK))


@triton.jit
def _recalled(start, BLOCK: tl.constexpr):
    """A matrix that was kept."""
    return _arranged(tl.load(start + tl.arange(0, BLOCK * BLOCK)), BLOCK)


@triton.jit
def _recalled_parts(start, BLOCK: tl.constexpr, KIND: tl.constexpr):
    """The parts of a matrix that was kept; split before it is arranged, which moves nothing then."""
    a, b, c = _split(tl.load(start + tl.arange(0, BLOCK * BLOCK)), KIND)
    return _arranged(a, BLOCK), _arranged(b, BLOCK), _arranged(c, BLOCK)


@triton.jit
def _keep(start, made, BLOCK: tl.constexpr):
    """A block in the order in which a tensor core's threads hold it: none has another's entries."""
    made = tl.permute(tl.reshape(made, (BLOCK // 16, 2, 8, BLOCK // 8, 4, 2)), (3, 0, 2, 4, 1, 5))
    tl.store(start + tl.arange(0, BLOCK * BLOCK), tl.reshape(made, (BLOCK * BLOCK,)))


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
    """All steps from the transpose over `largest`; see `room` for what is kept."""
    AREA: tl.constexpr = BLOCK * BLOCK
    mine = tl.program_id(0).to(tl.int64) * S * S
    apart = tl.num_programs(0).to(tl.int64) * AREA
    kept += tl.program_id(0).to(tl.int64) * AREA
    before = kept + apart
    given = _taken(matrix + mine, S, BLOCK)
    _keep(kept, given, BLOCK)
    _keep(before, tl.trans(given) / tl.load(largest + tl.program_id(0)), BLOCK)
    # Here and below: a thread may read what another wrote, and write what another is to read.
    tl.debug_barrier()
    for _ in range(iterations):
        right = _right(_recalled_parts(before, BLOCK, KIND))
        near = _product(_recalled_parts(kept, BLOCK, KIND), right)
        if KEEP:
            _keep(before + apart, near, BLOCK)
        right = _right(_split(near, KIND))
        made = _product(_split(_less(7, near, BLOCK), KIND), right)
        made = _product(_split(_less(15, made, BLOCK), KIND), right)
        made = _less(13, made, BLOCK)
        if KEEP:
            _keep(before + 2 * apart, made, BLOCK)
        right = _right(_split(made, KIND))
        state = _product(_recalled_parts(before, BLOCK, KIND), right) * 0.25
        if KEEP:
            before += 3 * apart
        else:
            tl.debug_barrier()
        _keep(before, state, BLOCK)
        tl.debug_barrier()
    _put(inverse + mine, _recalled(before, BLOCK), S, BLOCK)


@triton.jit
def _backward(
    largest, kept, grad, waiting, pull, share, iterations,
    S: tl.constexpr, BLOCK: tl.constexpr, KIND: tl.constexpr,
):  # fmt: skip
    """Gradients of a matrix and of what its transpose was divided by.

    With N = A Z a step multiplies Z by (13 - 15 N + 7 N^2 - N^3) / 4. All gradients are held transposed: then
    no factor is. That of the state and the sum over steps wait in memory, as registers do not hold them, too.
    """
    AREA: tl.constexpr = BLOCK * BLOCK
    mine = tl.program_id(0).to(tl.int64) * S * S
    apart = tl.num_programs(0).to(tl.int64) * AREA
    kept += tl.program_id(0).to(tl.int64) * AREA
    before = kept + apart * (3 * iterations + 1)
    waiting += tl.program_id(0).to(tl.int64) * AREA
    total = waiting + apart
    _keep(waiting, tl.trans(_taken(grad + mine, S, BLOCK)), BLOCK)
    _keep(total, tl.zeros([BLOCK, BLOCK], tl.float32), BLOCK)
    # Here and below: a thread may read what another wrote, and write what another is to read.
    tl.debug_barrier()
    for _ in range(iterations):
        before -= 3 * apart
        state = _right(_recalled_parts(before, BLOCK, KIND))
        above = _recalled_parts(waiting, BLOCK, KIND)
        right = _right(above)
        outer = _product(above, state) * 0.25
        direct = _product(_recalled_parts(before + 2 * apart, BLOCK, KIND), right) * 0.25
        tl.debug_barrier()
        _keep(waiting, direct, BLOCK)
        parts = _split(outer, KIND)
        right = _right(parts)
        near = _recalled_parts(before + apart, BLOCK, KIND)
        beyond = _right(near)
        both = _product(near, right)
        first = _product(parts, beyond)
        both += first
        right = _right(_split(both, KIND))
        outer = 7 * both - 15 * outer
        outer -= _product(_split(first, KIND), beyond)
        tl.debug_barrier()
        # Read again, as what follows is.
        outer -= _product(_recalled_parts(before + apart, BLOCK, KIND), right)
        parts = _split(outer, KIND)
        right = _right(parts)
        beyond = _right(_recalled_parts(kept, BLOCK, KIND))
        made = _product(parts, beyond) + _recalled(waiting, BLOCK)
        tl.debug_barrier()
        _keep(waiting, made, BLOCK)
        made = _product(_recalled_parts(before, BLOCK, KIND), right) + _recalled(total, BLOCK)
        tl.debug_barrier()
        _keep(total, made, BLOCK)
        tl.debug_barrier()
    above = _recalled(waiting, BLOCK)
    scale = tl.load(largest + tl.program_id(0))
    along = tl.sum(tl.sum(above * _recalled(kept, BLOCK), axis=1), axis=0)
    tl.store(share + tl.program_id(0), -along / (scale * scale))
    _put(pull + mine, tl.trans(_recalled(total, BLOCK)) + above / scale, S, BLOCK)


def room(matrix: Tensor, iterations: int, keep: bool) -> Tensor:
    """For what `forward` keeps, (3 i + 2, n, block^2) for n matrices: the matrices; of each step the
    states before it, the matrices times these, and what these are multiplied by; the last states. Without
    `keep` only the first and the last. Entries are in the order of `_keep`.
    """
    s = int(matrix.shape[-1])
    area = block_of(s) ** 2
    return matrix.new_empty(((3 * iterations if keep else 0) + 2, matrix.numel() // (s * s), area))


def forward(matrix: Tensor, largest: Tensor, iterations: int, keep: bool) -> tuple[Tensor, Tensor]:
    """The inverse after some steps, and what `room` was made for.

    Shapes: matrix (... s s) in float32, s up to 64, and largest (...), contiguous; returns (... s s) and
    as `room`.

    Args:
        matrix: positive, its rows sum to one.
        largest: what the transpose is divided by to begin with.
        iterations: steps i.
        keep: whether `backward` is to come.
    """
    s = matrix.shape[-1]
    block = block_of(s)
    inverse, kept = torch.empty_like(matrix), room(matrix, iterations, keep)
    _forward[(largest.numel(),)](
        matrix, largest, inverse, kept, iterations, KEEP=keep, S=s, BLOCK=block, KIND=KIND,
        num_warps=WARPS[block], num_stages=1,
    )  # fmt: skip
    return inverse, kept


def backward(matrix: Tensor, largest: Tensor, kept: Tensor, grad: Tensor) -> tuple[Tensor, Tensor]:
    """Gradients of the matrix and of `largest`, each as if the other were none of its.

    Shapes: as for `forward`; grad (... s s), contiguous; returns (... s s) and (...).
    """
    s = matrix.shape[-1]
    block = block_of(s)
    pull, share, waiting = torch.empty_like(matrix), torch.empty_like(largest), torch.empty_like(kept[:2])
    _backward[(largest.numel(),)](
        largest, kept, grad, waiting, pull, share, len(kept) // 3, S=s, BLOCK=block, KIND=KIND,
        num_warps=WARPS[block], num_stages=1,
    )  # fmt: skip
    return pull, share
