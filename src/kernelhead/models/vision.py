"""Image classifier: patches in, one vector of class scores out."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from kernelhead.errors import BadInput, unknown
from kernelhead.models.blocks import Block, Positions
from kernelhead.models.registry import Sizes, build_attention, layer_names
from kernelhead.nn import Dropout
from kernelhead.shapes import check_mask, check_size

POOLINGS = ("cls", "mean")


class ImageClassifier(nn.Module):
    """An encoder over the patches of an image and a linear head; dropped patches count for nothing.

    Shapes: x (b, channels, height, width) real-valued; keep (b, n), True where a patch is kept, with
    n patches row by row; returns (b, classes).

    Args:
        classes: class scores to return.
        channels: of a pixel.
        size: side of a square image, or (height, width).
        patch: side of a patch; must divide both sides of the image.
        width: of the model.
        depth: number of layers.
        heads: of each attention.
        attention: of all layers, of the last ("primal+") or of each; see `layer_names`.
        rank: of primal layers.
        landmarks: of primal and Nystrom layers.
        iterations: attentions of a pursuit, in RPC layers.
        strength: lambda of RPC layers; the preset's own if None.
        inner: middle width of the feed-forward, four times the width by default.
        norm: "pre" or "post".
        pooling: "cls" for a learned point in front, or "mean" of the kept patches.
        dropout: of positions, blocks and the head.
        drop_path: of the last block; it grows from zero at the first in equal steps.
        position: "learned", "sinusoidal" or "none".
        init: of primal weights, "orthonormal" or "published".

    Raises:
        BadInput: a size is out of range, or patches do not divide the image.
        UnknownName: no such attention, norm, pooling, position or init.

    Example:
        >>> model = ImageClassifier(10, channels=1, size=8, patch=2, width=16, heads=2, depth=2)
        >>> model(torch.zeros(5, 1, 8, 8)).shape
        torch.Size([5, 10])
    """

    def __init__(
        self,
        classes: int,
        *,
        channels: int,
        size: int | tuple[int, int],
        patch: int,
        width: int = 192,
        depth: int = 6,
        heads: int = 3,
        attention: str | Sequence[str] = "softmax",
        rank: int = 16,
        landmarks: int = 32,
        iterations: int = 4,
        strength: float | None = None,
        inner: int | None = None,
        norm: str = "pre",
        pooling: str = "cls",
        dropout: float = 0.0,
        drop_path: float = 0.0,
        position: str = "learned",
        init: str = "orthonormal",
    ) -> None:
        super().__init__()
        who = "ImageClassifier"
        high, wide = size if isinstance(size, tuple) else (size, size)
        given = {"classes": classes, "channels": channels, "patch": patch, "width": width, "depth": depth}
        for name, number in (given | {"image height": high, "image width": wide}).items():
            check_size(who, name, number)
        if high % patch or wide % patch:
            raise BadInput(
                f"{who}: an image of {high} by {wide} does not split into patches of {patch} by {patch}"
            )
        if pooling not in POOLINGS:
            raise unknown(who, "pooling", pooling, POOLINGS)
        self.channels, self.size, self.patch, self.pooling = channels, (high, wide), patch, pooling
        self.patches = (high // patch) * (wide // patch)
        self.embedding = nn.Linear(channels * patch * patch, width)
        extra = int(pooling == "cls")
        if extra:
            self.front = nn.Parameter(torch.randn(width) * 0.02)
        self.positions = Positions(width, kind=position, longest=self.patches + extra)
        sizes = Sizes(width, heads, rank, landmarks, init=init, iterations=iterations, strength=strength)
        self.blocks = nn.ModuleList(
            Block(
                build_attention(name, sizes),
                inner=inner or 4 * width,
                norm=norm,
                dropout=dropout,
                drop_path=drop_path * layer / max(depth - 1, 1),
            )
            for layer, name in enumerate(layer_names(attention, depth))
        )
        self.final_norm, self.dropout = nn.LayerNorm(width), Dropout(dropout)
        self.head = nn.Linear(width, classes)

    def forward(self, x: Tensor, keep: Tensor | None = None) -> Tensor:
        """Class scores of every image."""
        x, mask = self._embedded(x, keep)
        for block in self.blocks:
            x = block(x, mask=mask)
        scores: Tensor = self.head(self.dropout(self._pooled(self.final_norm(x), mask)))
        return scores

    def _embedded(self, x: Tensor, keep: Tensor | None) -> tuple[Tensor, Tensor | None]:
        if x.shape[1:] != (self.channels, *self.size) or not x.is_floating_point():
            expected = ", ".join(map(str, (self.channels, *self.size)))
            raise BadInput(
                f"ImageClassifier: `x` is {x.dtype} of shape {tuple(x.shape)}, "
                f"expected real numbers (b, {expected})"
            )
        pixels = self._unfolded(x)  # (b, n, channels * patch * patch)
        check_mask("ImageClassifier", keep, pixels, "keep")
        if keep is not None:
            pixels = pixels.masked_fill(~keep.unsqueeze(-1), 0)
        points = self.embedding(pixels)
        if self.pooling == "cls":
            points = torch.cat([self.front.to(points.dtype).expand(len(points), 1, -1), points], dim=1)
            keep = None if keep is None else nn.functional.pad(keep, (1, 0), value=True)
        return self.dropout(self.positions(points)), keep

    def _unfolded(self, x: Tensor) -> Tensor:
        """Pixels of every patch in a row, in the order of a convolution's weight."""
        side = self.patch
        cut = x.unflatten(3, (-1, side)).unflatten(2, (-1, side))  # (b, channels, rows, side, columns, side)
        return cut.permute(0, 2, 4, 1, 3, 5).flatten(3).flatten(1, 2)

    def _pooled(self, x: Tensor, keep: Tensor | None) -> Tensor:
        if self.pooling == "cls":
            return x[:, 0]
        if keep is None:
            return x.mean(1)
        return x.masked_fill(~keep.unsqueeze(-1), 0).sum(1) / keep.sum(1, keepdim=True).clamp_min(1)
