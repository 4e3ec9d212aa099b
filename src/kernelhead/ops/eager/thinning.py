"""Dropout by hashing one drawn word with the place of every entry, so that it can be made again anywhere."""

import torch
from torch import Tensor

# Of MurmurHash3's last steps and of Fibonacci hashing, as numbers of 32 bits with a sign.
SPREAD, FIRST, SECOND = -1_640_531_535, -2_048_144_789, -1_028_477_387
RANGE = 2**31


def hashed(places: Tensor, word: Tensor) -> Tensor:
    """A number of 32 bits for every place and word, each bit as good as drawn.

    Shapes: places (...), word (), both int32; returns (...), int32.
    """
    # A compiler would fold places that are only multiplied into numbers of more than 32 bits.
    made = places ^ word
    made = ((made ^ ((made >> 16) & 0xFFFF)) * SPREAD) ^ word
    made = (made ^ ((made >> 16) & 0xFFFF)) * FIRST
    made = (made ^ ((made >> 13) & 0x7FFFF)) * SECOND
    return made ^ ((made >> 16) & 0xFFFF)


def crossed(rows: int, columns: int, word: Tensor) -> Tensor:
    """Numbers of 32 bits for all entries of a matrix: hashes of rows and columns, and half of one of both.

    Shapes: word (), int32; returns (rows, columns), int32.
    """
    row, column = (torch.arange(size, dtype=torch.int32, device=word.device) for size in (rows, columns))
    made = (hashed(row, word)[:, None] + hashed(column, ~word)) * FIRST
    return (made ^ ((made >> 15) & 0x1FFFF)) * SECOND


def thinned_rows(x: Tensor, p: float, word: Tensor) -> Tensor:
    """Entries of rows zeroed with probability p, the others over 1 - p, as `crossed` has it.

    Shapes: x (..., c), word (), int32.
    """
    made = crossed(x.numel() // x.shape[-1], x.shape[-1], word).view(x.shape)
    return torch.where(made >= int(p * 2**32) - RANGE, x * (1 / (1 - p)), 0.0)
