"""Re-orders a list of candidates in its own context: an encoder over affinity features."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from kernelhead.errors import BadInput
from kernelhead.models.blocks import Block
from kernelhead.models.ranking import Ranking, expanded_sides, first_round, list_affinity, list_items
from kernelhead.models.registry import Sizes, build_attention, layer_names
from kernelhead.nn import Dropout, SoftmaxAttention, evaluating
from kernelhead.shapes import check_mask, check_size, zeroed


class RerankerModel(nn.Module):
    r"""Scores of the items of a list against its first item, the query, from their affinity features.

    A linear map, pre-norm blocks over the items without positions and without a last norm, and
    $s_i = \cos(x_0, x_i)$. Coordinates of affinity features are ranks of anchors; the items may come in any
    order, the query first: they are sorted by their first coordinate, the affinity to the query, where
    attention has landmarks among them. Padding counts for nothing.

    Shapes: affinity (b, n, l); mask (b, n), True where real; returns (b, n), zero at padded items.

    Args:
        anchors: coordinates of an affinity feature, l.
        width: of the model.
        depth: number of blocks.
        heads: of each attention.
        attention: of all layers, of the last ("primal+") or of each; see `layer_names`.
        rank: of primal layers.
        landmarks: of primal layers.
        dropout: of affinity features, their map, patterns of softmax attention and blocks, in training.
        drop_path: of the last block; it grows from zero at the first in equal steps.

    Raises:
        BadInput: a size is out of range.
        UnknownName: no such attention.

    Example:
        >>> model = RerankerModel(8, width=16, heads=2)
        >>> model(torch.rand(3, 10, 8)).shape
        torch.Size([3, 10])
    """

    def __init__(
        self,
        anchors: int,
        *,
        width: int = 64,
        depth: int = 2,
        heads: int = 4,
        attention: str | Sequence[str] = "softmax",
        rank: int = 16,
        landmarks: int = 32,
        dropout: float = 0.0,
        drop_path: float = 0.0,
    ) -> None:
        super().__init__()
        check_size("RerankerModel", "depth", depth)
        self.anchors = check_size("RerankerModel", "anchors", anchors)
        self.embedding, self.reconstruction = nn.Linear(anchors, width), nn.Linear(width, anchors)
        sizes = Sizes(width, heads, rank, landmarks)
        names = layer_names(attention, depth)
        self.blocks = nn.ModuleList(
            Block(
                build_attention(name, sizes),
                inner=4 * width,
                dropout=dropout,
                drop_path=drop_path * layer / max(depth - 1, 1),
            )
            for layer, name in enumerate(names)
        )
        self.dropout = Dropout(dropout)
        for module in self.modules():
            if isinstance(module, SoftmaxAttention):
                module.dropout = dropout
            if isinstance(module, nn.Linear):
                nn.init.trunc_normal_(module.weight, std=0.02)
                nn.init.zeros_(module.bias)

    def forward(self, affinity: Tensor, mask: Tensor | None = None) -> Tensor:
        """The score of every item, that of the query itself included."""
        return zeroed(self.scores(self.encode(affinity, mask))[..., None], mask)[..., 0]

    def encode(self, affinity: Tensor, mask: Tensor | None = None) -> Tensor:
        """What the items become, (b, n, c)."""
        if affinity.dim() != 3 or affinity.shape[2] != self.anchors or affinity.shape[1] == 0:
            raise BadInput(
                f"RerankerModel: `affinity` has shape {tuple(affinity.shape)}, expected "
                f"(b, n, {self.anchors}), n one or more"
            )
        check_mask("RerankerModel", mask, affinity)
        affinity = zeroed(affinity, mask)
        # Landmarks are places in the list: in this order they do not hang on how the items came.
        key = affinity[..., 0] if mask is None else affinity[..., 0].masked_fill(~mask, -torch.inf)
        order = key.argsort(dim=1, descending=True, stable=True)
        mask = None if mask is None else mask.gather(1, order)
        x = self.embedding(self.dropout(affinity.gather(1, order[..., None].expand_as(affinity))))
        x = self.dropout(x)
        for block in self.blocks:
            x = block(x, mask=mask)
        return torch.empty_like(x).scatter(1, order[..., None].expand_as(x), x)

    def scores(self, encoded: Tensor) -> Tensor:
        """Scores, (b, n), from what `encode` gave."""
        return F.cosine_similarity(encoded[:, :1], encoded, dim=-1)


@torch.no_grad()
def rerank(
    model: RerankerModel,
    query: Tensor,
    database: Tensor,
    k: int,
    *,
    sides: str = "none",
    neighbours: int = 10,
    alpha: float = 3.0,
    own: Tensor | None = None,
    batch: int = 64,
) -> Ranking:
    """Rank a database and re-order the first `k` items of every query by a model; the tail stays.

    Shapes: query (q, d), database (m, d), own (q,).

    Args:
        model: scores lists, in evaluation mode here.
        query: features of the queries; they need not be in the database.
        database: features of the items, on the model's device.
        k: items of a list; all where the database has fewer.
        sides: whose features move towards their neighbours before anything else; see `alpha_qe`.
        neighbours: how many they move towards.
        alpha: power of the similarity.
        own: where the queries are in the database, if they are; each is left out of its own ranking.
        batch: lists of a call of the model.

    Raises:
        UnknownName: no such sides.
        ShapeError: features are of different widths.
        BadInput: a number is below one, the database is empty, or `own` is no place of it.

    Example:
        >>> points = torch.randn(9, 4, generator=torch.Generator().manual_seed(0))
        >>> rerank(RerankerModel(4, width=8, heads=2), points[:2], points, 5).order.shape
        torch.Size([2, 9])
    """
    check_size("rerank", "k", k)
    query, database = expanded_sides(
        query, database, sides=sides, neighbours=neighbours, alpha=alpha, own=own
    )
    ranking = first_round(query, database, own=own)
    scores = []
    with evaluating(model):
        for some, order in zip(query.split(batch), ranking.head(k).order.split(batch), strict=True):
            affinity = list_affinity(list_items(some, database, order), model.anchors)
            scores.append(model(affinity.to(model.embedding.weight.dtype))[:, 1:])
    return ranking.resorted(torch.cat(scores))
