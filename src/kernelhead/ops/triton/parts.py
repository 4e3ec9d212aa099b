"""What all kernels share: blocks, room for outputs, and sums of what their programs left."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd import forward_ad

#: What Triton looks for in strides and addresses.
ALIGNED = 16


@dataclass(frozen=True)
class Cut:
    """How points are shared out.

    Attributes:
        tile: points that a program holds at once.
        programs: among which they are shared, as far as that pays.
        warps: of a program.
        stages: tiles that are on their way at once.
        registers: most of a thread; as many as the compiler likes if None.
    """

    tile: int
    programs: int
    warps: int
    stages: int
    registers: int | None = None


@triton.jit
def only_if(mask, count):
    """The mask, empty unless a number is above zero; as a block, which every interpreter takes."""
    return mask & (tl.zeros(mask.shape, tl.int32) < count)


@triton.jit
def add_to(total, lost, part):
    """A sum that carries what rounding took from it, so that many parts cost no more than one."""
    part -= lost
    raised = total + part
    return raised, (raised - total) - part


@triton.jit
def _add_up(
    parts, first, second, rows, groups, m, k,
    BLOCK_R: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Columns of a (rows, groups, m + k) array, summed over rows; m of a group go first, k second."""
    column = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    width = groups * (m + k)
    total = tl.zeros([BLOCK], tl.float32)
    for at in range(0, rows, BLOCK_R):
        row = at + tl.arange(0, BLOCK_R)
        inside = (row < rows)[:, None] & (column < width)[None, :]
        place = parts + row[:, None].to(tl.int64) * width + column[None, :]
        total += tl.sum(tl.load(place, mask=inside, other=0.0), axis=0)
    group, within = column // (m + k), column % (m + k)
    exists = column < width
    early = within < m
    tl.store(first + group * m + within, total.to(first.dtype.element_ty), mask=exists & early)
    tl.store(second + group * k + within - m, total.to(second.dtype.element_ty), mask=exists & ~early)


def added_up(
    parts: Tensor, first: tuple[int, ...], second: tuple[int, ...], kind: torch.dtype, groups: int = 1
) -> tuple[Tensor, Tensor]:
    """Two tensors of a kind and of the shapes `first` and `second`, from float32 parts of both.

    Shapes: parts hold rows of `groups` times a group's share of the first and then of the second.
    """
    made = parts.new_empty(first, dtype=kind), parts.new_empty(second, dtype=kind)
    m, k = made[0].numel() // groups, made[1].numel() // groups
    rows = parts.numel() // (groups * (m + k))
    # Few rows of many columns, or many rows of few: about the same number of entries at once.
    block_rows = min(64, triton.next_power_of_2(rows))
    block = max(64, 2048 // block_rows)
    _add_up[(triton.cdiv(groups * (m + k), block),)](
        parts, *made, rows, groups, m, k, BLOCK_R=block_rows, BLOCK=block
    )
    return made


def empty_output(query: Tensor, width: int | None = None) -> Tensor:
    """Room for an output: laid out as the query where that is dense, else with heads inside points.

    Args:
        query: (b, h, n, d).
        width: of the output; d by default.
    """
    batch, heads, n, d = query.shape
    width = width or d
    if query.is_contiguous():
        return query.new_empty((batch, heads, n, width))
    return query.new_empty((batch, n, heads, width)).transpose(1, 2)


def block_of(size: int) -> int:
    """The block that holds an axis: a power of two, as products need it."""
    return max(16, triton.next_power_of_2(size))


def precision_of(kind: torch.dtype) -> str:
    """How products of this precision are taken; only float32 has a choice."""
    return "ieee" if kind == torch.float32 else "tf32"


def aligned(points: Tensor) -> Tensor:
    """The same, its rows copied and filled up with zeros if they do not begin and end at multiples of 16.

    Triton 3.6 makes wrong code of products in half precision whose points come to shared memory through
    registers, as those of other rows do. Products of float32 do not go that way.
    """
    if points.stride(-1) != 1:
        points = points.contiguous()
    if points.element_size() == 4:
        return points
    if points.shape[-1] % ALIGNED:
        # A copy, which padding by nothing would be as well.
        return F.pad(points, (0, -points.shape[-1] % ALIGNED))
    apart = any(stride % ALIGNED for stride in points.stride()[:-1]) or points.data_ptr() % ALIGNED
    # A copy, which what lies in one piece at an odd address would not be.
    return points.clone(memory_format=torch.contiguous_format) if apart else points


def is_differentiated(grad: Tensor) -> bool:
    """Whether a gradient is to be differentiated itself, or stands for several: kernels do neither."""
    ours = torch._C._functorch
    several = ours.is_batchedtensor(grad) or ours.is_legacy_batchedtensor(grad)
    return torch.is_grad_enabled() or several or forward_ad._current_level >= 0


def fill_rows(weights: Tensor, rows: int) -> Tensor:
    """The same with rows of zeros at the end, so that there are as many."""
    return weights if rows == weights.shape[-2] else F.pad(weights, (0, 0, 0, rows - weights.shape[-2]))
