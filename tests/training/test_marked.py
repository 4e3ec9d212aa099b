"""Marking and marked_loss: every mark meets its point, moves with its picture, and weighs what it should."""

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from kernelhead.models import SequenceClassifier
from kernelhead.training.marked import Marking, Pixels, marked_loss
from kernelhead.training.views import moved

BLANK = -1


def tokens(**options: object) -> SequenceClassifier:
    torch.manual_seed(0)
    return SequenceClassifier(3, vocabulary=7, width=8, depth=1, heads=2, attention="softmax", **options)  # type: ignore[arg-type]


def squares(square: int, patch: int = 1) -> Pixels:
    torch.manual_seed(0)
    net = SequenceClassifier(
        3, channels=square**2, width=8, depth=1, heads=2, attention="softmax", position="none", patch=patch
    )
    return Pixels(net, 3.0, 2.0, square=square)


def as_it_is(values: Tensor) -> Tensor:
    return values


@pytest.mark.parametrize("square", [1, 2, 3])
def test_a_point_is_a_square_of_pixels(square: int) -> None:
    picture = torch.arange(36).view(1, 36)
    found = squares(square).grouped(picture)
    for point in range((6 // square) ** 2):
        down, across = divmod(point, 6 // square)
        for pixel in range(square**2):
            row, column = down * square + pixel // square, across * square + pixel % square
            assert found[0, point, pixel] == 6 * row + column


@pytest.mark.parametrize("square", [1, 2])
def test_pixels_are_numbers_to_the_net(square: int) -> None:
    net, x = squares(square), torch.randint(0, 256, (2, 36), dtype=torch.uint8)
    shown = (net.grouped(x).float() - 3) / 2
    assert torch.equal(net(x), net.net(shown))
    mask = torch.ones(2, 36, dtype=torch.bool)
    mask[1, 6 * 4 :] = False  # the last two rows
    kept = net.grouped(mask).any(-1)
    assert torch.equal(net(x, mask), net.net(shown, kept))


@pytest.mark.parametrize("options", [{}, {"patch": 4}, {"pooling": "cls", "patch": 3}], ids=str)
def test_marks_of_tokens_meet_their_points(options: dict[str, object]) -> None:
    net = Marking(tokens(**options), 5)
    x = torch.randint(0, 7, (2, 10))
    scores, marks = net.both(x)
    assert torch.equal(scores, net(x))
    assert torch.equal(scores, net.net(x))
    found = net.grouped(torch.arange(10).expand(2, 10))
    assert found.shape == marks.shape[:3]
    assert found[0].flatten()[:10].tolist() == list(range(10))
    assert (found[0].flatten()[10:] == BLANK).all()


def test_marks_of_squares_in_patches() -> None:
    net = Marking(squares(2, patch=3), 5)
    x = torch.randint(0, 256, (2, 64))
    found, marks = net.grouped(x), net.both(x)[1]
    assert found.shape == marks.shape[:3] == (2, 6, 12)
    assert found[0, 1].tolist() == squares(2).grouped(x)[0, 3:6].flatten().tolist()


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_the_loss_is_the_mean_over_marks_beside_that_over_classes(smoothing: float) -> None:
    net, x, y = Marking(tokens(), 5), torch.randint(0, 7, (4, 9)), torch.tensor([0, 1, 2, 0])
    marks = torch.randint(-1, 5, (4, 9), dtype=torch.int8)
    scores, found = (each.detach() for each in net.both(x))
    total, count = 0.0, 0
    for case in range(4):
        for place in range(9):
            if marks[case, place] >= 0:
                total -= float(found[case, place, 0].log_softmax(-1)[marks[case, place]])
                count += 1
    wanted = float(F.cross_entropy(scores, y, label_smoothing=smoothing)) + 0.5 * total / count
    lost = marked_loss(0.5, as_it_is, smoothing=smoothing)(net, (x, marks), y)
    assert lost.item() == pytest.approx(wanted)


def test_cases_without_marks_have_the_loss_of_their_classes() -> None:
    net, x, y = Marking(tokens(), 5), torch.randint(0, 7, (4, 9)), torch.tensor([0, 1, 2, 0])
    mask = torch.arange(9) < torch.tensor([[9], [4], [1], [6]])
    lost = marked_loss(2.0, as_it_is)(net, (x, mask, torch.full((4, 9), -1, dtype=torch.int8)), y)
    assert torch.equal(lost, F.cross_entropy(net(x, mask), y))


def test_marks_move_with_their_pictures() -> None:
    """What comes in from beyond an edge is black and has no mark."""
    seen: list[tuple[Tensor, Tensor]] = []

    class Watched(Marking):
        def both(self, x: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
            seen.append((x, torch.empty(0)))
            return super().both(x, mask)

        def grouped(self, values: Tensor) -> Tensor:
            seen[-1] = (seen[-1][0], values)
            return super().grouped(values)

    def show(values: Tensor) -> Tensor:
        return moved(values.unflatten(-1, (6, 6)), shift=2, mirror=True).flatten(2)

    x = torch.arange(1, 37, dtype=torch.uint8).expand(8, 36)
    marks = (x % 5).to(torch.int8)
    marked_loss(1.0, show)(Watched(squares(2), 5), (x, marks), torch.zeros(8, dtype=torch.int64))
    (shown, moved_marks) = seen[0]
    assert not torch.equal(shown, x)
    assert torch.equal(moved_marks, torch.where(shown > 0, shown.long() % 5, BLANK))
