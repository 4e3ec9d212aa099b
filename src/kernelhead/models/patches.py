"""Series as histograms of attention: which patches of other series their points look most like."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from kernelhead.errors import ShapeError
from kernelhead.shapes import check_size

KINDS = ("shape", "distance")
PIECE = 64  # series at a time
SHORTEST = 1e-2  # added to the norm of a window, so that flat ones match nothing


@dataclass(frozen=True, eq=False)
class Group:
    """Patches of one kind, size and dilation on the same channels, which points choose among.

    Args:
        kind: "shape" for the correlation of patch and window, "distance" for the score whose softmax is
            that of a Gaussian kernel.
        channels: which channels they lie on, (k,).
        patches: (marks, k, size); of kind "shape" without mean and of norm one.
        dilation: distance of their points.
        spread: of a point's scores over the patches, by which they are divided.
    """

    kind: str
    channels: Tensor
    patches: Tensor
    dilation: int
    spread: float

    def scores(self, x: Tensor) -> Tensor:
        """Of every window and patch, (b, marks, windows), for series (b, a, n)."""
        x, (_, wide, size) = x[:, self.channels], self.patches.shape
        found = F.conv1d(x, self.patches, dilation=self.dilation)
        if self.kind == "distance":
            return (found - self.patches.square().sum((1, 2))[:, None] / 2) / (wide * size)
        ones = torch.ones_like(self.patches[:1])
        total, squares = (F.conv1d(each, ones, dilation=self.dilation) for each in (x, x.square()))
        rest = (squares - total.square() / (wide * size)).clamp_min(0)
        return found / (rest.sqrt() + SHORTEST)

    def windows(self, lengths: Tensor, count: int) -> Tensor:
        """Which windows lie within their series, (b, windows); the first always counts."""
        last = lengths - (self.patches.shape[2] - 1) * self.dilation
        return torch.arange(count) < last.clamp_min(1)[:, None]


class PatchAttention:
    r"""Features of series by attention to landmark patches, without a weight that is learned.

    Landmarks are patches of training series, at several sizes and dilations. In each group every point t
    attends to the patches, $p_{tj} = \mathrm{softmax}_j(s_{tj} / \sigma)$ with s their correlation, or
    $q_t^\top k_j - |k_j|^2 / 2$, for which it is the attention of a Gaussian kernel. A series becomes
    $\sqrt{\mathrm{mean}_t\, p_{tj}}$ and $\max_t s_{tj}$: cost is linear in its length, and a linear
    classifier does the rest.

    Args:
        groups: as `drawn` makes them.

    Example:
        >>> x = torch.randn(6, 2, 40, generator=torch.Generator().manual_seed(0))
        >>> made = PatchAttention.drawn(x, torch.full((6,), 40), seed=0, groups=1)
        >>> made.features(x, torch.full((6,), 40)).shape
        torch.Size([6, 512])
    """

    def __init__(self, groups: Sequence[Group]) -> None:
        self.groups = tuple(groups)

    @classmethod
    def drawn(
        cls,
        x: Tensor,
        lengths: Tensor,
        *,
        seed: int,
        marks: int = 16,
        groups: int = 16,
        sizes: Sequence[int] = (7, 9, 11),
        channels: int = 9,
    ) -> "PatchAttention":
        """Draw patches of series; dilations are the powers of two at which a patch fits one of them.

        Shapes: x (b, a, n), float32 and standardised, zero after the end; lengths (b,).

        Args:
            seed: of all draws.
            marks: patches of a group.
            groups: of every kind, size and dilation.
            sizes: points of a patch; those beyond the longest series are left out, unless none is left.
            channels: most channels of a group; how many is drawn, few more often than many.

        Raises:
            BadInput: a size is not a positive whole number.
            ShapeError: x is not (b, a, n), or there is not one length for each series.
        """
        _check("PatchAttention.drawn", x, lengths)
        counts = {"marks": marks, "groups": groups, "channels": channels}
        for name, value in [*counts.items(), *(("size", size) for size in sizes)]:
            check_size("PatchAttention.drawn", name, value)
        source = np.random.Generator(np.random.Philox(seed))
        long = lengths.numpy()
        made = []
        for size, dilation in _scales(sizes, int(long.max())):
            for kind in KINDS * groups:
                count = int(2 ** source.uniform(0, np.log2(min(x.shape[1], channels) + 1)))
                chosen = torch.from_numpy(np.sort(source.choice(x.shape[1], count, replace=False)))
                patches = _patches(x, long, chosen, size, dilation, marks, source)
                made.append(_group(kind, chosen, patches, dilation, x, lengths))
        return cls(made)

    def features(self, x: Tensor, lengths: Tensor) -> Tensor:
        """Attention and best match of every patch, (b, features).

        Shapes: x (b, a, n) as for `drawn`, at least as long as the longest patch; lengths (b,).

        Raises:
            ShapeError: x is not (b, a, n), or there is not one length for each series.
        """
        _check("PatchAttention.features", x, lengths)
        pieces = zip(x.split(PIECE), lengths.split(PIECE), strict=True)
        return torch.cat([torch.cat([*self._parts(*piece)], dim=1) for piece in pieces])

    def _parts(self, x: Tensor, lengths: Tensor) -> Iterator[Tensor]:
        for group in self.groups:
            scores = group.scores(x)
            real = group.windows(lengths, scores.shape[2])[:, None]
            attended = (scores / group.spread).softmax(1).masked_fill(~real, 0).sum(2) / real.sum(2)
            yield attended.sqrt()
            yield scores.masked_fill(~real, -torch.inf).amax(2)


def _check(who: str, x: Tensor, lengths: Tensor) -> None:
    if x.dim() != 3 or lengths.shape != x.shape[:1]:
        raise ShapeError(
            f"{who}: `x` {tuple(x.shape)} and `lengths` {tuple(lengths.shape)}, expected (b, a, n) and (b,)"
        )


def _scales(sizes: Sequence[int], longest: int) -> Iterator[tuple[int, int]]:
    """Sizes and dilations of patches that fit the longest series; as long as that if none does."""
    for size in [size for size in sizes if size <= longest] or [longest]:
        dilation = 1
        yield size, dilation
        while size > 1 and (size - 1) * 2 * dilation < longest:
            dilation *= 2
            yield size, dilation


def _patches(
    x: Tensor,
    lengths: NDArray[np.int64],
    channels: Tensor,
    size: int,
    dilation: int,
    marks: int,
    source: np.random.Generator,
) -> Tensor:
    """Patches of series that are long enough, (marks, k, size)."""
    reach = (size - 1) * dilation + 1
    cases = source.choice(np.flatnonzero(lengths >= reach), marks)
    starts = source.integers(0, lengths[cases] - reach + 1)
    found = [
        x[case, channels, start : start + reach : dilation] for case, start in zip(cases, starts, strict=True)
    ]
    return torch.stack(found)


def _group(kind: str, channels: Tensor, patches: Tensor, dilation: int, x: Tensor, lengths: Tensor) -> Group:
    """A group with the spread of its scores on the first series."""
    if kind == "shape":
        patches = patches - patches.mean((1, 2), keepdim=True)
        patches = patches / patches.flatten(1).norm(dim=1)[:, None, None].clamp_min(1e-6)
    plain = Group(kind, channels, patches, dilation, 1.0)
    scores = plain.scores(x[: PIECE // 2])
    real = plain.windows(lengths[: PIECE // 2], scores.shape[2])
    spread = scores.transpose(1, 2)[real].std(1, correction=0).mean()
    return replace(plain, spread=float(spread) + 1e-6)
