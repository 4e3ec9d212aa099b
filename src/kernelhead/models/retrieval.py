"""Classifier of pairs: two sequences of tokens in, scores of how they belong together out."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from kernelhead.errors import BadInput
from kernelhead.models.sequence import SequenceClassifier
from kernelhead.shapes import check_mask, check_size


class PairClassifier(nn.Module):
    r"""One encoder for both sequences, and a head over $[a, b, ab, a - b]$ of their pooled features.

    Shapes: x (b, 2, n) tokens, both sequences padded to one length; mask (b, 2, n), True where real;
    returns (b, classes).

    Args:
        vocabulary: number of tokens.
        classes: class scores to return.
        width: of the model.
        depth: number of layers.
        heads: of each attention.
        attention: of all layers, of the last ("primal+") or of each; see `layer_names`.
        rank: of primal layers.
        landmarks: of primal and Nystrom layers.
        iterations: attentions of a pursuit, in RPC layers.
        strength: lambda of RPC layers; the preset's own if None.
        inner: middle width of the feed-forward and of the head, twice the width by default.
        pooling: as in `SequenceClassifier`.
        position: "sinusoidal", "learned" or "none".
        longest: most tokens, where positions are learned or pooling flattens.
        dropout: of positions, blocks and pooled features.
        init: of primal weights, "orthonormal" or "published".

    Raises:
        BadInput: a size is out of range.
        UnknownName: no such attention, pooling, position or init.

    Example:
        >>> model = PairClassifier(257, width=16, heads=2, attention="primal", rank=4)
        >>> model(torch.ones(5, 2, 9, dtype=torch.int64)).shape
        torch.Size([5, 2])
    """

    def __init__(
        self,
        vocabulary: int,
        classes: int = 2,
        *,
        width: int = 64,
        depth: int = 2,
        heads: int = 2,
        attention: str | Sequence[str] = "primal",
        rank: int = 16,
        landmarks: int = 32,
        iterations: int = 4,
        strength: float | None = None,
        inner: int | None = None,
        pooling: str = "mean",
        position: str = "sinusoidal",
        longest: int = 0,
        dropout: float = 0.0,
        init: str = "orthonormal",
    ) -> None:
        super().__init__()
        check_size("PairClassifier", "classes", classes)
        inner = inner or 2 * width
        self.encoder = SequenceClassifier(
            classes,
            vocabulary=vocabulary,
            width=width,
            depth=depth,
            heads=heads,
            attention=attention,
            rank=rank,
            landmarks=landmarks,
            iterations=iterations,
            strength=strength,
            inner=inner,
            pooling=pooling,
            position=position,
            longest=longest,
            dropout=dropout,
            init=init,
        )
        # Pooled features are wanted, not scores.
        self.encoder.head = nn.Identity()
        features = width * (longest if pooling == "flatten" else 1)
        self.head = nn.Sequential(nn.Linear(4 * features, inner), nn.ReLU(), nn.Linear(inner, classes))

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Class scores of every pair."""
        if x.dim() != 3 or x.shape[1] != 2 or x.is_floating_point():
            raise BadInput(
                f"PairClassifier: `x` is {x.dtype} of shape {tuple(x.shape)}, "
                "expected whole numbers (b, 2, n)"
            )
        check_mask("PairClassifier", mask, x.unsqueeze(-1))
        features = self.encoder(x.flatten(0, 1), None if mask is None else mask.flatten(0, 1))
        first, second = features.unflatten(0, (-1, 2)).unbind(1)
        scores: Tensor = self.head(torch.cat([first, second, first * second, first - second], dim=-1))
        return scores
