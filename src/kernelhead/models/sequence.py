"""Token or time-series classifier: points in, one vector of class scores out."""

from collections.abc import Sequence
from math import inf, sqrt

import torch
from torch import Tensor, nn

from kernelhead.errors import BadInput, unknown
from kernelhead.models.blocks import Block, Positions
from kernelhead.models.registry import NONE, Sizes, build_attention, layer_names
from kernelhead.nn import Dropout, Embedding, LocalMixing
from kernelhead.shapes import check_mask, check_size, zeroed

POOLINGS = ("mean", "max", "last", "cls", "flatten")
ACTIVATIONS = ("none", "gelu")
PADDINGS = ("masked", "published")


class SequenceClassifier(nn.Module):
    """An encoder over points and a linear head over their pooled features; padding counts for nothing.

    Shapes: x (b, n, a) real-valued, or (b, n) tokens; mask (b, n), True where real; returns (b, classes).

    Args:
        classes: class scores to return.
        channels: features of a real-valued point, or None for tokens.
        vocabulary: number of tokens, or None for real-valued points.
        width: of the model.
        depth: number of layers.
        heads: of each attention.
        attention: of all layers, of the last ("primal+") or of each; see `layer_names`. "none" for layers
            that mix neighbours alone, with a `window`.
        rank: of primal layers.
        landmarks: of primal and Nystrom layers.
        iterations: attentions of a pursuit, in RPC layers.
        strength: lambda of RPC layers; the preset's own if None.
        inner: middle width of the feed-forward, four times the width by default.
        norm: "pre" or "post".
        pooling: "mean" or "max" of real points, the "last" of them, "cls" for a learned point in front, or
            "flatten" of all `longest` points.
        position: "sinusoidal", "learned" or "none".
        longest: most points, where positions are learned or pooling flattens.
        dropout: of positions, blocks and the head.
        init: of primal weights, "orthonormal" or "published".
        hidden: middle width of a head of two layers; one layer if None.
        window: neighbours that are mixed before every attention; none if 0.
        dilations: distances of these neighbours, layer after layer, over and over.
        drop_path: of the last block; it grows from zero at the first in equal steps.
        activation: "none", or "gelu" of the features that are pooled, as published for series.
        patch: so many points that lie side by side become one before the first layer, which then sees
            fewer; a patch counts as real where one of its points is.
        modes: cosines over the slots of primal landmarks that weights are made of; None for free slots.
        padding: "masked", or "published": primal layers take padded points for real ones, landmarks among
            them, and the mean is a sum of real points over all, as in the released long-range models.
        spread: deviation of token embeddings at first. With patches a small one may keep training from
            beginning; 1 is good there.
        scale: by which embedded channels are multiplied; the root of the width if None, as published.

    Raises:
        BadInput: both or neither of channels and vocabulary, or a size out of range.
        UnknownName: no such attention, norm, pooling, position, init, activation or padding.

    Example:
        >>> model = SequenceClassifier(3, channels=2, width=16, heads=2, attention="primal+", rank=4)
        >>> model(torch.zeros(5, 9, 2)).shape
        torch.Size([5, 3])
    """

    def __init__(
        self,
        classes: int,
        *,
        channels: int | None = None,
        vocabulary: int | None = None,
        width: int = 64,
        depth: int = 2,
        heads: int = 4,
        attention: str | Sequence[str] = "primal",
        rank: int = 16,
        landmarks: int = 32,
        iterations: int = 4,
        strength: float | None = None,
        inner: int | None = None,
        norm: str = "pre",
        pooling: str = "mean",
        position: str = "sinusoidal",
        longest: int = 0,
        dropout: float = 0.0,
        init: str = "orthonormal",
        hidden: int | None = None,
        window: int = 0,
        dilations: Sequence[int] = (1,),
        drop_path: float = 0.0,
        activation: str = "none",
        patch: int = 1,
        modes: int | None = None,
        padding: str = "masked",
        spread: float = 0.02,
        scale: float | None = None,
    ) -> None:
        super().__init__()
        who = "SequenceClassifier"
        check_size(who, "classes", classes)
        check_size(who, "depth", depth)
        check_size(who, "patch", patch)
        if (channels is None) == (vocabulary is None):
            raise BadInput(f"{who}: give `channels` or `vocabulary`, got {channels!r} and {vocabulary!r}")
        if pooling not in POOLINGS:
            raise unknown(who, "pooling", pooling, POOLINGS)
        if activation not in ACTIVATIONS:
            raise unknown(who, "activation", activation, ACTIVATIONS)
        if padding not in PADDINGS:
            raise unknown(who, "padding", padding, PADDINGS)
        for name, each in (("spread", spread), ("scale", 1.0 if scale is None else scale)):
            if not 0 < each < inf:
                raise BadInput(f"{who}: `{name}` is {each}, expected a number above 0")
        if window < 0 or not dilations:
            raise BadInput(
                f"{who}: `window` is {window}, `dilations` {dilations}; expected 0 or more, and one or more"
            )
        if longest < 1 and (pooling == "flatten" or position == "learned"):
            raise BadInput(
                f"{who}: `longest` is {longest}, but flatten and learned positions need one of 1 or more"
            )
        self.channels, self.vocabulary, self.longest, self.pooling = channels, vocabulary, longest, pooling
        self.activation, self.patch, self.padding = activation, patch, padding
        self.places = longest = -(-longest // patch)
        self.embedding: nn.Module
        if channels is not None:
            self.embedding = nn.Linear(check_size(who, "channels", channels), width)
            self.scale = sqrt(width) if scale is None else scale
        else:
            self.embedding = Embedding(check_size(who, "vocabulary", vocabulary), width)
            nn.init.normal_(self.embedding.weight, std=spread)
            self.scale = 1.0
        self.join = nn.Linear(patch * width, width) if patch > 1 else None
        extra = int(pooling == "cls")
        self.positions = Positions(width, kind=position, longest=longest + extra)
        if extra:
            self.front = nn.Parameter(torch.randn(width) * 0.02)
        sizes = Sizes(
            width, heads, rank, landmarks, init=init, iterations=iterations, strength=strength, modes=modes
        )

        def mixing(layer: int) -> LocalMixing | None:
            if not window:
                return None
            return LocalMixing(width, taps=window, dilation=dilations[layer % len(dilations)])

        self.blocks = nn.ModuleList(
            Block(
                None if name == NONE else build_attention(name, sizes),
                inner=inner or 4 * width,
                norm=norm,
                dropout=dropout,
                drop_path=drop_path * layer / max(depth - 1, 1),
                local=mixing(layer),
            )
            for layer, name in enumerate(layer_names(attention, depth))
        )
        self.final_norm, self.dropout = nn.LayerNorm(width), Dropout(dropout)
        pooled = width * (longest if pooling == "flatten" else 1)
        self.head: nn.Module = nn.Linear(pooled, classes)
        if hidden is not None:
            check_size(who, "hidden", hidden)
            self.head = nn.Sequential(nn.Linear(pooled, hidden), nn.ReLU(), nn.Linear(hidden, classes))

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Class scores of every sequence."""
        return self.classified(*self.points(x, mask))

    def points(self, x: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        """Features of every point before they are pooled, and which points are real.

        Shapes: as for `forward`; returns (b, n, c) and (b, n), a point for every patch.
        """
        x, mask = self._embedded(x, mask)
        for block in self.blocks:
            x = block(x, mask=mask, padded=self.padding == "published")
        return self.final_norm(x), mask

    def classified(self, points: Tensor, mask: Tensor | None = None) -> Tensor:
        """Class scores (b, classes) from what `points` returns."""
        shown = nn.functional.gelu(points) if self.activation == "gelu" else points
        scores: Tensor = self.head(self.dropout(self._pooled(shown, mask)))
        return scores

    def _embedded(self, x: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor | None]:
        who = type(self).__name__
        wanted = f"(b, n, {self.channels})" if self.channels is not None else "(b, n) whole numbers"
        fits = x.dim() == 2 and not x.is_floating_point() if self.channels is None else x.dim() == 3
        if not fits or (self.channels is not None and x.shape[-1] != self.channels):
            raise BadInput(f"{who}: `x` is {x.dtype} of shape {tuple(x.shape)}, expected {wanted}")
        if x.shape[1] == 0:
            raise BadInput(f"{who}: `x` {tuple(x.shape)} is an empty sequence, expected a point or more")
        check_mask(who, mask, x if self.channels is not None else x.unsqueeze(-1))
        if self.pooling == "flatten" and x.shape[1] > self.longest:
            raise BadInput(f"{who}: {x.shape[1]} points, but pooling flattens {self.longest} at most")
        if mask is not None:
            x = x.masked_fill(~(mask if self.channels is None else mask.unsqueeze(-1)), 0)
        if self.channels is None and x.dtype not in (torch.int32, torch.int64):
            x = x.long()  # tokens may be kept in fewer bytes
        points = self.embedding(x) * self.scale
        if self.join is not None:
            points, mask = self._patched(self.join, points, mask)
        if self.pooling == "cls":
            front = self.front.to(points.dtype).expand(points.shape[0], 1, -1)
            points = torch.cat([front, points], dim=1)
            if mask is not None:
                mask = torch.cat([mask.new_ones(mask.shape[0], 1), mask], dim=1)
        return self.dropout(self.positions(points)), mask

    def _patched(self, join: nn.Module, points: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """A point for every patch, (b, n / patch, c), and which patches have a real point."""
        behind = -points.shape[1] % self.patch
        points = nn.functional.pad(zeroed(points, mask), (0, 0, 0, behind))
        made: Tensor = join(points.unflatten(1, (-1, self.patch)).flatten(2))
        if mask is None:
            return made, None
        return made, nn.functional.pad(mask, (0, behind)).unflatten(1, (-1, self.patch)).any(-1)

    def _pooled(self, x: Tensor, mask: Tensor | None) -> Tensor:
        if self.pooling == "max":
            if mask is None:
                return x.amax(1)
            most = x.masked_fill(~mask.unsqueeze(-1), torch.finfo(x.dtype).min).amax(1)
            return most.masked_fill(~mask.any(1, keepdim=True), 0)
        x = x if mask is None else x.masked_fill(~mask.unsqueeze(-1), 0)
        if self.pooling == "cls":
            return x[:, 0]
        if self.pooling == "flatten":
            return nn.functional.pad(x, (0, 0, 0, self.places - x.shape[1])).flatten(1)
        if self.pooling == "mean":
            if mask is None or self.padding == "published":
                return x.mean(1)
            return x.sum(1) / mask.sum(1, keepdim=True).clamp_min(1)
        if mask is None:
            return x[:, -1]
        place = torch.arange(x.shape[1], device=x.device)
        last = torch.where(mask, place, 0).amax(1)
        return x[torch.arange(x.shape[0], device=x.device), last]
