"""Networks that are asked about single tokens too: where a dash leads, what a list within a list is worth."""

from collections.abc import Callable
from math import isqrt
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from kernelhead.models import SequenceClassifier
from kernelhead.training.steps import Inputs, Loss

Show = Callable[[Tensor], Tensor]


class Pixels(nn.Module):
    """A classifier of real-valued sequences that takes pixels, tokens of 0 to 255, for numbers.

    Numbers have mean 0 and deviation 1 in training. A point is a pixel, or a square of them, row by row.

    Shapes: x (b, n) whole numbers, mask (b, n); returns (b, classes).

    Args:
        net: a classifier with a channel for every pixel of a square.
        mean: of all pixels.
        deviation: of all pixels.
        square: pixels of a point each way.

    Example:
        >>> net = SequenceClassifier(2, channels=4, width=8, attention="softmax")
        >>> Pixels(net, 128.0, 64.0, square=2)(torch.zeros(3, 36, dtype=torch.uint8)).shape
        torch.Size([3, 2])
    """

    def __init__(self, net: SequenceClassifier, mean: float, deviation: float, *, square: int = 1) -> None:
        super().__init__()
        self.net, self.mean, self.deviation, self.square = net, mean, max(deviation, 1e-6), square

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Class scores of every picture."""
        return self.classified(*self.points(x, mask))

    def points(self, x: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        """Features of every point, and which are real; one is where one of its pixels is."""
        shown = (self.grouped(x).float() - self.mean) / self.deviation
        return self.net.points(shown, None if mask is None else self.grouped(mask).any(-1))

    def classified(self, points: Tensor, mask: Tensor | None = None) -> Tensor:
        """Class scores from what `points` returns."""
        return self.net.classified(points, mask)

    def grouped(self, values: Tensor) -> Tensor:
        """A value of every pixel (b, n) as the values of every point (b, points, pixels)."""
        side, square = isqrt(values.shape[1]), self.square
        rows = values.view(-1, side // square, square, side // square, square)
        return rows.transpose(2, 3).flatten(3).flatten(1, 2)


class Marking(nn.Module):
    """A classifier with a second head, for training: which of some numbers is every token marked with?

    Shapes: x (b, n), mask (b, n); returns class scores (b, classes).

    Args:
        net: the classifier.
        marks: numbers that a token can be marked with.

    Example:
        >>> net = SequenceClassifier(2, vocabulary=5, width=8, attention="softmax", patch=2)
        >>> [each.shape for each in Marking(net, 3).both(torch.zeros(4, 9, dtype=torch.int64))]
        [torch.Size([4, 2]), torch.Size([4, 5, 2, 3])]
    """

    def __init__(self, net: SequenceClassifier | Pixels, marks: int) -> None:
        super().__init__()
        inner = net.net if isinstance(net, Pixels) else net
        square = net.square if isinstance(net, Pixels) else 1
        self.net, self.marks, self.patch = net, marks, inner.patch
        self.front = int(inner.pooling == "cls")  # a point that stands for no token
        self.head = nn.Linear(inner.final_norm.normalized_shape[0], square**2 * inner.patch * marks)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Class scores of every sequence."""
        scores: Tensor = self.net(x, mask)
        return scores

    def both(self, x: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Class scores, and those of the marks of every token (b, points, tokens of a point, marks)."""
        points, real = self.net.points(x, mask)
        marked: Tensor = self.head(points[:, self.front :])
        return self.net.classified(points, real), marked.unflatten(-1, (-1, self.marks))

    def grouped(self, values: Tensor) -> Tensor:
        """A value of every token (b, n) as those of every point (b, points, tokens); -1 behind the end."""
        cells = self.net.grouped(values) if isinstance(self.net, Pixels) else values.unsqueeze(-1)
        behind = -cells.shape[1] % self.patch
        return F.pad(cells, (0, 0, 0, behind), value=-1).unflatten(1, (-1, self.patch)).flatten(2)


def marked_loss(weight: float, show: Show, *, smoothing: float = 0.0) -> Loss:
    """Cross-entropy of classes and, so many times, of the marks of all tokens that have one.

    Args:
        weight: of marks.
        show: changes pictures as training shows them, and what is marked with them.
        smoothing: of the classes.

    Returns:
        A loss of a `Marking` net, whose last input is marks (b, n), -1 where there is none.
    """

    def loss(net: nn.Module, x: Inputs, targets: Tensor) -> Tensor:
        marking, (tokens, *mask, marks) = cast(Marking, net), x
        # What comes in from beyond an edge is 0, which is no mark here.
        tokens, marks = show(torch.stack([tokens.short(), marks.short() + 1], dim=1)).unbind(1)
        scores, found = marking.both(tokens, *mask)
        wanted = marking.grouped(marks.long() - 1)
        lost = F.cross_entropy(
            found.flatten(0, 2).float(), wanted.flatten(), ignore_index=-1, reduction="sum"
        )
        classes = F.cross_entropy(scores, targets, label_smoothing=smoothing)
        return classes + weight * lost / (wanted >= 0).sum().clamp_min(1)

    return loss
