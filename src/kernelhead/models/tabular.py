"""A model of whole tables: attention between rows and between columns in turn, entries in, entries out."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from kernelhead.errors import BadInput, unknown
from kernelhead.nn import AttributeAttention, DatapointAttention, Dropout
from kernelhead.shapes import check_axes, check_mask, check_size, zeroed

PART = 8192  # rows at a time where nothing is kept for a backward pass


@dataclass(frozen=True)
class Preset:
    """What a layer of a table model does beside attending.

    Attributes:
        norm: which sides of the attention are normed, "all" or "query".
        scale: of inner products, by the width of the "input" or of a "head".
        epsilon: of all norms.
    """

    norm: str
    scale: str
    epsilon: float


PRESETS = {
    "norm_all": Preset("all", "input", 1e-5),
    "published": Preset("query", "input", 1e-12),
}


class TableBlock(nn.Module):
    r"""An attention with a learned residual, and a feed-forward, of rows or of columns.

    $R = W H + w + \mathrm{att}(H)$, then $R + f(\mathrm{norm}(R))$ with f of one hidden layer, four times as
    wide.

    Shapes: table (b, r, a, e), mask (b, r); returns (b, r, a, e).

    Args:
        attention: between rows or between columns; it norms its own input.
        width: features of what attends: a e for rows, e for columns.
        dropout: after the attention, in the middle of the feed-forward and after it.
        epsilon: of the norm.

    Example:
        >>> TableBlock(AttributeAttention(8, heads=2), 8)(torch.zeros(1, 5, 3, 8)).shape
        torch.Size([1, 5, 3, 8])
    """

    def __init__(
        self,
        attention: DatapointAttention | AttributeAttention,
        width: int,
        *,
        dropout: float = 0.0,
        epsilon: float = 1e-5,
    ) -> None:
        super().__init__()
        self.attention, self.residual = attention, nn.Linear(width, width)
        self.dropout, self.norm = Dropout(dropout), nn.LayerNorm(width, eps=epsilon)
        self.feed_forward = nn.Sequential(
            nn.Linear(width, 4 * width),
            nn.GELU(),
            Dropout(dropout),
            nn.Linear(4 * width, width),
            Dropout(dropout),
        )

    def forward(self, table: Tensor, *, mask: Tensor | None = None, context: int | None = None) -> Tensor:
        """Attend, then feed forward; rows beyond the first `context` are seen by none but themselves."""
        if isinstance(self.attention, AttributeAttention):
            return _by_rows(lambda rows: self._around(rows, self.attention(rows)), table)
        if context is None:
            attended = self.attention(table, mask=mask)
        else:
            front, back = table[:, :context], table[:, context:]
            near, far = (None, None) if mask is None else (mask[:, :context], mask[:, context:])
            seen = self.attention(front, mask=near)
            attended = torch.cat(
                [seen, self.attention(back, mask=far, context=front, context_mask=near)], dim=1
            )
        made = _by_rows(self._around, table.flatten(-2), attended.flatten(-2))
        return made.view_as(table)

    def _around(self, x: Tensor, attended: Tensor) -> Tensor:
        x = self.residual(x) + self.dropout(attended)
        output: Tensor = x + self.feed_forward(self.norm(x))
        return output


class TableModel(nn.Module):
    """Predicts every entry of a table from all known ones: rows attend to rows, columns to columns, in turn.

    An entry is its column's encoding, zero where it is not known, with a bit that says so; missing values
    need no filling in. Each column has a linear map in and one out, and a learned vector; where numeric and
    categorical columns meet each kind has one too. Shuffling rows shuffles predictions.

    Shapes: values (b, r, sum of widths), the columns' encodings side by side, or one tensor (b, r, width) a
    column; missing (b, r, a), True where an entry is not known; row_mask (b, r), True where a row exists;
    returns one (b, r, width) a column, means or logits, zero at rows that do not exist.

    Args:
        widths: of each column's encoding: 1, or the number of levels.
        categorical: whether each column is.
        width: features of an entry, e.
        depth: layers, an even number: rows first, then columns, and so on.
        heads: of each attention; must divide `width`.
        attention: between rows, "softmax", "self", "primal" or "inducing"; see `DatapointAttention`.
        preset: "norm_all", queries, keys and values normed, or "published", queries only, as released.
        rank: of primal row attention.
        inducing: learned points of primal and inducing row attention.
        dropout: of entries of patterns, after attentions, in feed-forwards, before and after all layers.

    Raises:
        BadInput: sizes that do not fit each other, or numbers out of range.
        UnknownName: no such attention or preset.

    Example:
        >>> model = TableModel([1, 3], categorical=[False, True], width=8, depth=2, heads=2)
        >>> values, missing = torch.zeros(1, 5, 4), torch.zeros(1, 5, 2, dtype=torch.bool)
        >>> [tuple(part.shape) for part in model(values, missing)]
        [(1, 5, 1), (1, 5, 3)]
    """

    owner: Tensor

    def __init__(
        self,
        widths: Sequence[int],
        *,
        categorical: Sequence[bool],
        width: int = 32,
        depth: int = 4,
        heads: int = 4,
        attention: str = "softmax",
        preset: str = "norm_all",
        rank: int = 16,
        inducing: int = 32,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        who = "TableModel"
        if not widths or len(widths) != len(categorical):
            raise BadInput(
                f"{who}: {len(widths)} widths and {len(categorical)} kinds of columns, "
                "expected the same number of both and one or more"
            )
        if check_size(who, "depth", depth, least=2) % 2:
            raise BadInput(f"{who}: depth is {depth}, expected an even number: rows and columns in turn")
        if preset not in PRESETS:
            raise unknown(who, "preset", preset, PRESETS)
        chosen, columns = PRESETS[preset], len(widths)
        self.widths = tuple(check_size(who, "widths", each) for each in widths)
        self.categorical, self.width, self.depth = tuple(map(bool, categorical)), width, depth
        self.embed = nn.ModuleList(nn.Linear(each + 1, width) for each in self.widths)
        self.column = nn.Parameter(torch.randn(columns, width))
        mixed = any(self.categorical) and not all(self.categorical)
        self.kind = nn.Parameter(torch.randn(2, width)) if mixed else None
        self.dropout = Dropout(dropout)
        norm, scale, epsilon = chosen.norm, chosen.scale, chosen.epsilon
        self.blocks = nn.ModuleList()
        for _ in range(depth // 2):
            rows = DatapointAttention(
                columns,
                width,
                heads=heads,
                attention=attention,
                norm=norm,
                scale=scale,
                rank=rank,
                inducing=inducing,
                dropout=dropout,
                epsilon=epsilon,
            )
            cells = AttributeAttention(
                width, heads=heads, norm=norm, scale=scale, dropout=dropout, epsilon=epsilon
            )
            self.blocks.append(TableBlock(rows, columns * width, dropout=dropout, epsilon=epsilon))
            self.blocks.append(TableBlock(cells, width, dropout=dropout, epsilon=epsilon))
        self.unembed = nn.ModuleList(nn.Linear(width, each) for each in self.widths)
        owner = torch.repeat_interleave(torch.arange(columns), torch.tensor(self.widths))
        self.register_buffer("owner", owner, persistent=False)

    def forward(
        self,
        values: Sequence[Tensor] | Tensor,
        missing: Tensor,
        *,
        row_mask: Tensor | None = None,
        context: int | None = None,
    ) -> list[Tensor]:
        """Predictions of all entries.

        Args:
            values: what is known of the table; see the class for shapes.
            missing: where nothing is known.
            row_mask: rows that exist; all if None.
            context: if given, the first so many rows are seen by all and the others by none but themselves,
                so that what is predicted for a row does not depend on who else is asked about.

        Raises:
            BadInput: tensors that do not fit the model or each other, or `context` is not from 1 to r.
        """
        if not isinstance(values, Tensor):
            values = torch.cat([*values], dim=-1)
        self._check(values, missing, row_mask, context)
        hidden = missing if row_mask is None else missing | ~row_mask.unsqueeze(-1)
        values = values.masked_fill(hidden.index_select(-1, self.owner), 0)
        entries = torch.cat([values, hidden.to(values.dtype)], dim=-1)
        table = self.dropout(_by_rows(self._embedded, entries))
        for block in self.blocks:
            table = block(table, mask=row_mask, context=None if context == missing.shape[1] else context)
        table = self.dropout(table)
        cells = zip(self.unembed, table.unbind(-2), strict=True)
        return [zeroed(unembed(cell), row_mask) for unembed, cell in cells]

    def _embedded(self, entries: Tensor) -> Tensor:
        """Encodings and bits (b, r, sum of widths + a) as vectors (b, r, a, e)."""
        *parts, bits = entries.split([*self.widths, len(self.widths)], dim=-1)
        cells = [
            embed(torch.cat([part, bit.unsqueeze(-1)], dim=-1))
            for embed, part, bit in zip(self.embed, parts, bits.unbind(-1), strict=True)
        ]
        table = torch.stack(cells, dim=-2) + self.column
        if self.kind is not None:
            table = table + torch.stack([self.kind[int(each)] for each in self.categorical])
        return table

    def _check(self, values: Tensor, missing: Tensor, row_mask: Tensor | None, context: int | None) -> None:
        who = "TableModel"
        check_axes(who, values=(values, "b r v"), missing=(missing, "b r a"))
        wanted = sum(self.widths), len(self.widths)
        if (values.shape[-1], missing.shape[-1]) != wanted:
            raise BadInput(
                f"{who}: `values` {tuple(values.shape)} and `missing` {tuple(missing.shape)}, expected "
                f"(b, r, {wanted[0]}) and (b, r, {wanted[1]})"
            )
        if missing.dtype != torch.bool:
            raise BadInput(
                f"{who}: `missing` is {missing.dtype}, expected torch.bool with True where not known"
            )
        check_mask(who, row_mask, values, "row_mask")
        if context is not None and not 1 <= context <= values.shape[1]:
            raise BadInput(f"{who}: context is {context}, expected from 1 to the {values.shape[1]} rows")


def released_weights(state: Mapping[str, Tensor], depth: int) -> dict[str, Tensor]:
    """Weights of the released model as those of a `TableModel` with the preset "published".

    Args:
        state: its state dict.
        depth: its layers.

    Raises:
        BadInput: a weight has no place in a `TableModel`.

    Example:
        >>> [*released_weights({"enc.3.mab.fc_res.bias": torch.zeros(4)}, 2)]
        ['blocks.1.residual.bias']
    """
    places = {
        "in_embedding": "embed",
        "out_embedding": "unembed",
        "feature_index_embedding.weight": "column",
        "feature_type_embedding.weight": "kind",
    }
    for number in range(depth):
        for theirs, ours in RELEASED.items():
            places[f"enc.{2 * number + 1}.mab.{theirs}"] = f"blocks.{number}.{ours}"
    found = {}
    for name, weight in state.items():
        place = next((each for each in places if name == each or name.startswith(f"{each}.")), None)
        if place is None:
            raise BadInput(f"released_weights: {name!r} has no place in a TableModel of {depth} layers")
        found[places[place] + name.removeprefix(place)] = weight
    return found


#: A released block's parts, and ours.
RELEASED = {
    "fc_q": "attention.attention.query",
    "fc_k": "attention.attention.key",
    "fc_v": "attention.attention.value",
    "fc_mix_heads": "attention.attention.out",
    "fc_res": "residual",
    "ln0": "attention.attention.norm.norm",
    "ln1": "norm",
    "rff.0": "feed_forward.0",
    "rff.2": "feed_forward.3",  # where it has no dropout
    "rff.3": "feed_forward.3",
}


def _by_rows(function: Callable[..., Tensor], *tables: Tensor) -> Tensor:
    """What a function of rows makes of (b, r, ...), some rows at a time where no gradient is asked for."""
    if torch.is_grad_enabled() or torch.compiler.is_compiling() or tables[0].shape[1] <= PART:
        return function(*tables)
    parts = zip(*(table.split(PART, dim=1) for table in tables), strict=True)
    return torch.cat([function(*part) for part in parts], dim=1)
