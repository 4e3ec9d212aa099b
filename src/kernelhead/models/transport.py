"""Models that carry points to where their class is: a map to dummy classes, a small transformer of clouds."""

from collections.abc import Sequence
from itertools import combinations, pairwise
from math import pi, sin

import torch
from torch import Tensor, nn

from kernelhead.errors import BadInput
from kernelhead.nn import Dropout, WideAttention
from kernelhead.shapes import check_axes, check_size

EPSILON = 1e-6  # of norms in a block


def ring_anchors(classes: int, width: int, *, radius: float) -> Tensor:
    r"""Means of dummy classes on a circle of the first two coordinates, class c of k at $2 \pi c / k$.

    All other coordinates are zero.

    Shapes: returns (classes, width).

    Args:
        classes: k.
        width: coordinates of a point, two or more.
        radius: of the circle.

    Raises:
        BadInput: a size is too small, or the radius is not above 0.

    Example:
        >>> ring_anchors(2, 3, radius=6.0).round(decimals=3) + 0.0
        tensor([[ 6.,  0.,  0.],
                [-6.,  0.,  0.]])
    """
    check_size("ring_anchors", "classes", classes)
    check_size("ring_anchors", "width", width, least=2)
    _check_radius("ring_anchors", radius)
    angle = 2 * pi * torch.arange(classes) / classes
    anchors = torch.zeros(classes, width)
    anchors[:, 0], anchors[:, 1] = radius * angle.cos(), radius * angle.sin()
    return anchors


def mean_anchors(x: Tensor, y: Tensor, *, radius: float) -> Tensor:
    r"""Means of dummy classes that lie to each other as the means of real ones do.

    The means of all classes, about their own mean, scaled so that the two nearest are as far apart as
    neighbours on the ring of that radius, $2 r \sin(\pi / k)$.

    Shapes: x (n, d), y (n,), classes from 0; returns (classes, d).

    Raises:
        BadInput: fewer than two classes, two means coincide, or the radius is not above 0.

    Example:
        >>> mean_anchors(torch.tensor([[0.0, 0.0], [1.0, 0.0]]), torch.tensor([0, 1]), radius=6.0)
        tensor([[-6.,  0.],
                [ 6.,  0.]])
    """
    who = "mean_anchors"
    check_axes(who, x=(x, "n d"), y=(y, "n"))
    _check_radius(who, radius)
    classes = int(y.max()) + 1
    if classes < 2:
        raise BadInput(f"{who}: 1 class, expected two or more")
    means = torch.stack([x[y == place].mean(0) for place in range(classes)])
    nearest = min(float((one - other).norm()) for one, other in combinations(means, 2))
    if not nearest > 0:
        raise BadInput(f"{who}: the means of two classes coincide, expected them apart; take dummies='ring'")
    return (means - means.mean(0)) * (2 * radius * sin(pi / classes) / nearest)


class TransportMap(nn.Module):
    r"""A network that carries points to dummy classes, and says by distance which one a point came to.

    Scores are $-\|f(x) - \mu_c\|$, whose softmax gives probabilities.

    Shapes: x (... d); returns (... d'), the coordinates of the anchors.

    Args:
        features: of a point, d.
        anchors: means of the dummy classes, (classes, d').
        hidden: widths of the layers between, with relu after each.

    Raises:
        BadInput: a size is not a positive whole number.

    Example:
        >>> model = TransportMap(3, ring_anchors(2, 3, radius=6.0))
        >>> model(torch.zeros(5, 3)).shape, model.scores(torch.zeros(5, 3)).shape
        (torch.Size([5, 3]), torch.Size([5, 2]))
    """

    anchors: Tensor

    def __init__(self, features: int, anchors: Tensor, *, hidden: Sequence[int] = (32, 32)) -> None:
        super().__init__()
        check_axes("TransportMap", anchors=(anchors, "k d"))
        widths = [features, *hidden]
        for width in widths:
            check_size("TransportMap", "width", width)
        layers: list[nn.Module] = []
        for into, out in pairwise(widths):
            layers += [nn.Linear(into, out), nn.ReLU()]
        self.layers = nn.Sequential(*layers, nn.Linear(widths[-1], anchors.shape[1]))
        self.register_buffer("anchors", anchors.clone())

    def forward(self, x: Tensor) -> Tensor:
        """Where points are carried to."""
        made: Tensor = self.layers(x)
        return made

    def scores(self, x: Tensor) -> Tensor:
        """Minus the distance from every anchor, (... classes)."""
        return -(self(x).unsqueeze(-2) - self.anchors).norm(dim=-1)


class CloudBlock(nn.Module):
    r"""Attention and feed-forward that are normed after they were computed and then added.

    $Z = X + \mathrm{norm}(\mathrm{att}(X))$, then $Z + \mathrm{norm}(f(Z))$; both keep the features of a
    point, so that what goes in and what comes out lie in one space.

    Shapes: x (b, n, c), mask (b, n); returns (b, n, c).

    Args:
        width: features of a point, c.
        heads: of the attention.
        head_width: features of a head.
        inner: width of the middle of the feed-forward.
        dropout: after the attention and in the feed-forward.

    Example:
        >>> CloudBlock(2)(torch.zeros(1, 5, 2)).shape
        torch.Size([1, 5, 2])
    """

    def __init__(
        self, width: int, *, heads: int = 10, head_width: int = 16, inner: int = 32, dropout: float = 0.1
    ) -> None:
        super().__init__()
        self.attention = WideAttention(width, heads=heads, head_width=head_width, dropout=dropout)
        self.attention_norm, self.forward_norm = (nn.LayerNorm(width, eps=EPSILON) for _ in range(2))
        self.dropout = Dropout(dropout)
        self.feed_forward = nn.Sequential(
            nn.Linear(width, inner), nn.ReLU(), Dropout(dropout), nn.Linear(inner, width)
        )

    def forward(self, x: Tensor, *, mask: Tensor | None = None) -> Tensor:
        """Attend, then feed forward."""
        x = x + self.attention_norm(self.dropout(self.attention(x, mask=mask)))
        added: Tensor = self.forward_norm(self.feed_forward(x))
        return x + added


class CloudClassifier(nn.Module):
    """A transformer in the space of its input: blocks that keep it, and a head for every point.

    Shapes: x (b, n, c); returns (b, n, classes), scores of each point.

    Args:
        width: features of a point, c.
        classes: how many.
        blocks: how many.
        heads: of each attention.
        head_width: features of a head.
        inner: width of the middle of the feed-forwards.
        hidden: width of the middle of the head.
        dropout: in the blocks.
        head_dropout: in the middle of the head.

    Raises:
        BadInput: a size is not a positive whole number.

    Example:
        >>> CloudClassifier(2, 3)(torch.zeros(4, 20, 2)).shape
        torch.Size([4, 20, 3])
    """

    def __init__(
        self,
        width: int,
        classes: int,
        *,
        blocks: int = 1,
        heads: int = 10,
        head_width: int = 16,
        inner: int = 32,
        hidden: int = 8,
        dropout: float = 0.1,
        head_dropout: float = 0.4,
    ) -> None:
        super().__init__()
        for name, size in (("classes", classes), ("blocks", blocks), ("inner", inner), ("hidden", hidden)):
            check_size("CloudClassifier", name, size)
        self.blocks = nn.Sequential(
            *(
                CloudBlock(width, heads=heads, head_width=head_width, inner=inner, dropout=dropout)
                for _ in range(blocks)
            )
        )
        self.head = nn.Sequential(
            nn.Linear(width, hidden), nn.ReLU(), Dropout(head_dropout), nn.Linear(hidden, classes)
        )

    def forward(self, x: Tensor) -> Tensor:
        """Scores of every point."""
        made: Tensor = self.head(self.blocks(x))
        return made


def _check_radius(who: str, radius: float) -> None:
    if not radius > 0:
        raise BadInput(f"{who}: radius is {radius!r}, expected a number above 0")
