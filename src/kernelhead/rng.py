"""Seeds in a with-block: the global generators are afterwards as they were before."""

from collections.abc import Iterator
from contextlib import contextmanager
from operator import index

import torch

from kernelhead.errors import BadInput


@contextmanager
def seeded(*numbers: int) -> Iterator[None]:
    """Draw from a stream named by whole numbers inside the block, and leave no trace of it.

    The stream depends on all the numbers, so ``seeded(seed, epoch, step)`` needs no stored state
    to be repeated.

    Example:
        >>> with seeded(3, 1):
        ...     first = torch.rand(2)
        >>> with seeded(3, 1):
        ...     print(torch.equal(first, torch.rand(2)))
        True
    """
    devices = list(range(torch.cuda.device_count())) if torch.cuda.is_initialized() else []
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed(mixed(*numbers))
        yield


def mixed(*numbers: int) -> int:
    """One 63-bit seed from several whole numbers; nearby inputs give unrelated seeds.

    Raises:
        BadInput: one is no whole number.

    Example:
        >>> mixed(0, 1) != mixed(1, 0)
        True
    """
    state = 0x9E3779B97F4A7C15
    for given in numbers:
        try:
            # Those of numpy would overflow.
            number = index(given)
        except TypeError:
            raise BadInput(f"seed is {given!r}, expected a whole number") from None
        state ^= (number + 0x9E3779B97F4A7C15 + (state << 6) + (state >> 2)) & 0xFFFFFFFFFFFFFFFF
        state = (state ^ (state >> 30)) * 0xBF58476D1CE4E5B9 & 0xFFFFFFFFFFFFFFFF
        state = (state ^ (state >> 27)) * 0x94D049BB133111EB & 0xFFFFFFFFFFFFFFFF
        state ^= state >> 31
    return state >> 1


def generator(*numbers: int) -> torch.Generator:
    """A CPU generator of its own, seeded by whole numbers.

    Example:
        >>> bool(torch.rand(1, generator=generator(5)) == torch.rand(1, generator=generator(5)))
        True
    """
    return torch.Generator().manual_seed(mixed(*numbers))
