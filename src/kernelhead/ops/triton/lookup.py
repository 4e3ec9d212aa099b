"""Sums of rows by the token that they belong to, which is the gradient of a table that tokens looked up.

Rows that are added one by one wait for each other where many belong to one token, as those of black pixels.
A product of which token each row has and the rows does not: these are split into three numbers of eight bits
each, so that nothing of float32 is lost. Programs sum over some tiles, and their sums are added up in a fixed
order: two runs give the same bits.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernelhead.ops.triton.parts import block_of

TILE, PROGRAMS, WARPS = 32, 264, 4  # rows that are added at a time; programs that share them, and theirs
MOST = 256  # tokens of a program
PARTS = tl.constexpr(3)  # of eight bits each, of a number in float32
KIND = tl.bfloat16


@triton.jit
def _gathered(
    tokens, grad, parts, rows, c, vocabulary, blocks,
    KIND: tl.constexpr, TILE: tl.constexpr, BLOCK_V: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """Sums over some tiles of the rows of each token of a block."""
    program, block = tl.program_id(0) // blocks, tl.program_id(0) % blocks
    token, feature, lane = block * BLOCK_V + tl.arange(0, BLOCK_V), tl.arange(0, BLOCK_C), tl.arange(0, TILE)
    total = tl.zeros([BLOCK_V, BLOCK_C], tl.float32)
    for tile in range(program, tl.cdiv(rows, TILE), tl.num_programs(0) // blocks):
        row = tl.cast(tile, tl.int64) * TILE + lane
        seen = tl.load(tokens + row, mask=row < rows, other=0).to(tl.int32)
        inside = (row < rows)[:, None] & (feature < c)[None, :]
        left = tl.load(grad + row[:, None] * c + feature[None, :], mask=inside, other=0.0).to(tl.float32)
        mine = (token[:, None] == seen[None, :]).to(KIND)  # (v, n)
        for _ in tl.static_range(PARTS):
            part = left.to(KIND)
            total = tl.dot(mine, part, total, input_precision="ieee")
            left -= part.to(tl.float32)
    place = (tl.cast(program, tl.int64) * vocabulary + token[:, None]) * c + feature[None, :]
    tl.store(parts + place, total, mask=(token < vocabulary)[:, None] & (feature < c)[None, :])


def gathered(tokens: Tensor, grad: Tensor, vocabulary: int) -> Tensor:
    """The sum of the rows of every token, float32.

    Shapes: tokens (...), whole numbers below `vocabulary`; grad (... c), both contiguous; returns (v, c).

    Args:
        tokens: of the rows.
        grad: rows of up to 128 features.
        vocabulary: how many tokens there are.
    """
    rows, c = tokens.numel(), grad.shape[-1]
    block = min(block_of(vocabulary), MOST)
    blocks = triton.cdiv(vocabulary, block)
    programs = max(min(triton.cdiv(rows, TILE), PROGRAMS // blocks), 1)
    parts = grad.new_empty((programs, vocabulary, c), dtype=torch.float32)
    _gathered[(programs * blocks,)](
        tokens, grad, parts, rows, c, vocabulary, blocks,
        KIND=KIND, TILE=TILE, BLOCK_V=block, BLOCK_C=block_of(c), num_warps=WARPS,
    )  # fmt: skip
    return parts.sum(0)
