"""Generators whose answer is known: series with one of several motifs hidden in noise."""

import numpy as np
from numpy.typing import NDArray

from kernelhead.data.series import Series
from kernelhead.errors import BadInput
from kernelhead.shapes import check_size

NOISE = 0.3


def echo_series(cases: int, *, length: int, channels: int, classes: int, seed: int) -> Series:
    """Series of unequal lengths; the class says which motif is planted, at a random place.

    Lengths lie between half of `length` and all of it. The motifs do not depend on the seed, so
    two seeds give two samples of one problem. Classes differ by at most one in their counts.

    Args:
        cases: how many series.
        length: the most time stamps, t; at least six a class.
        channels: channels of a case, a.
        classes: how many motifs.
        seed: names the draw.

    Raises:
        BadInput: a size is not positive, or the length is too short to tell the motifs apart.

    Example:
        >>> drawn = echo_series(6, length=24, channels=2, classes=3, seed=0)
        >>> len(drawn), drawn.channels, drawn.classes
        (6, 2, ('0', '1', '2'))
    """
    check_size("echo_series", "cases", cases)
    motifs = echo_motifs(length=length, channels=channels, classes=classes)  # (classes, t, a)
    generator = np.random.Generator(np.random.Philox(check_size("echo_series", "seed", seed, least=0)))
    kinds = generator.permutation(np.arange(cases) % classes)
    drawn = []
    for kind in kinds:
        time = int(generator.integers(motifs.shape[1], length, endpoint=True))
        place = int(generator.integers(time - motifs.shape[1], endpoint=True))
        case = NOISE * generator.standard_normal((time, channels))  # (t, a)
        case[place : place + motifs.shape[1]] += motifs[kind]
        drawn.append(case.astype(np.float32))
    return Series(tuple(drawn), tuple(map(str, kinds)), "echo")


def echo_motifs(*, length: int, channels: int, classes: int) -> NDArray[np.float64]:
    r"""What `echo_series` plants: motif $k$ is $k + 1$ waves that swell and fade.

    Channel $j$ of $a$ runs $j / 2a$ of a wave ahead of the first.

    Shapes: returns (classes, half of length, a).

    Raises:
        BadInput: a size is not positive, or the length is too short to tell the motifs apart.

    Example:
        >>> echo_motifs(length=24, channels=2, classes=3).shape
        (3, 12, 2)
    """
    for name, size in (("length", length), ("channels", channels), ("classes", classes)):
        check_size("echo_motifs", name, size)
    if length < 6 * classes:
        raise BadInput(
            f"echo_motifs: length is {length}, expected at least {6 * classes} for {classes} classes"
        )
    time = (np.arange(length // 2) + 0.5) / (length // 2)  # (t,)
    waves = np.arange(1, classes + 1)[:, None, None]
    ahead = np.arange(channels) / (2 * channels)
    swell = np.sin(np.pi * time)[:, None] ** 2
    return np.asarray(swell * np.sin(2 * np.pi * (waves * time[:, None] + ahead)))
