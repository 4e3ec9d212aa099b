"""Classifier of event sequences: types and times in, class scores at the time of a question out."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from kernelhead.errors import BadInput, unknown
from kernelhead.models.blocks import Block
from kernelhead.models.registry import Sizes, build_attention, layer_names
from kernelhead.nn import Dropout, TimeAwareAttention, TimeEncoding
from kernelhead.shapes import check_axes, check_mask, check_size

# Options of a TimeEncoding by the one name that recipes and command lines use.
ENCODINGS: dict[str, dict[str, str]] = {
    "none": {"kind": "none"},
    "position": {"kind": "position"},
    "scalar": {"kind": "scalar"},
    "fixed": {"kind": "bochner", "spectrum": "fixed"},
    "normal": {"kind": "bochner", "spectrum": "normal"},
    "inverse_cdf": {"kind": "bochner", "spectrum": "inverse_cdf"},
    "bochner": {"kind": "bochner"},
    "mercer": {"kind": "mercer"},
    "published_bochner": {"kind": "bochner", "preset": "published"},
    "published_mercer": {"kind": "mercer", "preset": "published"},
}


class EventModel(nn.Module):
    """Time-aware blocks over a question and the events before it; the question's point is what is scored.

    Every time enters as its lag before the question, taken in float64. The question is a point of its own, at
    lag zero, so that a kernel of two times compares it with every event.

    Shapes: types (b, n) whole numbers; times (b, n) and asked (b,), in float64 where spans are long; mask
    (b, n), True where real; returns (b, classes).

    Args:
        types: how many.
        classes: scores to return.
        width: of the model.
        time_width: features of a time.
        depth: number of layers.
        heads: of each attention.
        attention: of all layers, of the last ("primal+") or of each; see `layer_names`.
        time: the encoding, one of `ENCODINGS`.
        mix: how the kernels of events and of times meet; see `TimeAwareAttention`.
        periods: the shortest and the longest at the start.
        harmonics: of a period of "mercer".
        unit: of times and periods.
        longest: most events, where positions are learned.
        rank: of primal layers.
        landmarks: of primal and Nystrom layers.
        inner: middle width of the feed-forward, four times the width by default.
        dropout: of blocks and the head.
        init: of primal weights, "orthonormal" or "published".

    Raises:
        BadInput: a size is out of range, or does not go with the encoding or the mix.
        UnknownName: no such attention, encoding, mix, unit or init.

    Example:
        >>> model = EventModel(5, 3, width=8, time_width=8, heads=2)
        >>> times = torch.tensor([[0.0, 1.5, 9.0]])
        >>> model(torch.tensor([[4, 0, 1]]), times, torch.tensor([10.0])).shape
        torch.Size([1, 3])
    """

    def __init__(
        self,
        types: int,
        classes: int,
        *,
        width: int = 32,
        time_width: int = 32,
        depth: int = 1,
        heads: int = 4,
        attention: str | Sequence[str] = "softmax",
        time: str = "bochner",
        mix: str = "concatenate",
        periods: tuple[float, float] = (0.1, 100.0),
        harmonics: int = 5,
        unit: str = "days",
        longest: int = 0,
        rank: int = 16,
        landmarks: int = 32,
        inner: int | None = None,
        dropout: float = 0.0,
        init: str = "orthonormal",
    ) -> None:
        super().__init__()
        who = "EventModel"
        for name, size in (("types", types), ("classes", classes), ("width", width), ("depth", depth)):
            check_size(who, name, size)
        if time not in ENCODINGS:
            raise unknown(who, "time encoding", time, ENCODINGS)
        self.unit = unit
        self.embedding = nn.Embedding(types, width)
        self.question = nn.Parameter(torch.randn(width) * 0.02)
        nn.init.normal_(self.embedding.weight, std=0.5)
        both = width + time_width if mix == "concatenate" else width
        sizes = Sizes(both, heads, rank, landmarks, init=init)

        def layer(name: str) -> TimeAwareAttention:
            options = ENCODINGS[time]
            encoding = TimeEncoding(
                time_width,
                kind=options["kind"],
                spectrum=options.get("spectrum", "free"),
                preset=options.get("preset"),
                periods=periods,
                harmonics=harmonics,
                unit=unit,
                longest=longest + 1,
            )
            return TimeAwareAttention(build_attention(name, sizes), time=encoding, mix=mix)

        self.blocks = nn.ModuleList(
            Block(layer(name), inner=inner or 4 * width, dropout=dropout)
            for name in layer_names(attention, depth)
        )
        self.final_norm, self.dropout = nn.LayerNorm(width), Dropout(dropout)
        self.head = nn.Linear(width, classes)

    def forward(self, types: Tensor, times: Tensor, asked: Tensor, mask: Tensor | None = None) -> Tensor:
        """Class scores of every question."""
        who = "EventModel"
        if types.dim() != 2 or types.is_floating_point() or not types.shape[1]:
            raise BadInput(
                f"{who}: `types` is {types.dtype} of shape {tuple(types.shape)}, expected whole numbers "
                "(b, n), n of 1 or more"
            )
        check_axes(who, types=(types, "b n"), times=(times, "b n"), asked=(asked, "b"))
        check_mask(who, mask, types.unsqueeze(-1))
        lags = asked.double().unsqueeze(1) - times.double()
        if mask is not None:
            types = types.masked_fill(~mask, 0)
            mask = torch.cat([mask, mask.new_ones(len(mask), 1)], dim=1)
        events = self.embedding(types)
        x = torch.cat([events, self.question.expand(len(events), 1, -1).to(events.dtype)], dim=1)
        lags = torch.cat([lags, torch.zeros_like(lags[:, :1])], dim=1)
        for block in self.blocks:
            x = _through(block, x, lags, mask)
        scores: Tensor = self.head(self.dropout(self.final_norm(x[:, -1])))
        return scores


def _through(block: Any, x: Tensor, lags: Tensor, mask: Tensor | None) -> Tensor:
    """Points through one block, with their lags."""
    made: Tensor = block.around(lambda points: block.attention(points, times=lags, mask=mask), x)
    return made
