"""feed_forward against loops in float64, its gradients, what it drops, and what it refuses."""

from math import sqrt

import pytest
import torch
from torch import Tensor

from kernelhead.errors import BadInput, ShapeError
from kernelhead.ops import feed_forward
from kernelhead.ops.backends import feed_forward_backend
from kernelhead.ops.eager import feedforward as eager
from kernelhead.ops.eager.thinning import crossed
from tests.inputs import points
from tests.oracles import feedforward as oracle
from tests.tolerance import assert_exact

Pair = tuple[Tensor, Tensor]


def given(*shape: int, inner: int = 6) -> tuple[Tensor, Pair, Pair, Pair]:
    c = shape[-1]
    norm, enter = (points(c, seed=1), points(c, seed=2)), (points(inner, c, seed=3), points(inner, seed=4))
    return points(*shape), norm, enter, (points(c, inner, seed=5), points(c, seed=6))


def numpy(pair: Pair) -> tuple[object, object]:
    return pair[0].numpy(), pair[1].numpy()


@pytest.mark.parametrize("n", [1, 7])
def test_the_definition(n: int) -> None:
    x, *pairs = given(n, 5)
    exact = oracle.feed_forward(x.numpy(), *map(numpy, pairs), 1e-3)
    assert_exact(feed_forward(x, *pairs, epsilon=1e-3), torch.from_numpy(exact))


def test_what_is_dropped() -> None:
    x, *pairs = given(4, 5)
    word, p = torch.tensor([77, 2**31 - 3], dtype=torch.int32), 0.3
    kept = [
        (torch.tensor(oracle.crossed(4, size, int(each))) >= p * 2**32 - 2**31).double() / (1 - p)
        for size, each in zip((6, 5), word, strict=True)
    ]
    assert all(0 < each.count_nonzero() < each.numel() for each in kept)
    exact = oracle.feed_forward(x.numpy(), *map(numpy, pairs), 1e-5, (kept[0].numpy(), kept[1].numpy()))
    assert_exact(eager.feed_forward(x, *pairs, word, p, 1e-5), torch.from_numpy(exact))


def test_the_hash_of_rows_and_columns() -> None:
    for word in (0, 1, 2**31 - 2):
        made = crossed(40, 30, torch.tensor(word, dtype=torch.int32))
        assert made.tolist() == oracle.crossed(40, 30, word)


@pytest.mark.parametrize("p", [0.1, 0.5])
def test_draws_are_independent(p: float) -> None:
    def drawn(word: int) -> Tensor:
        kept = crossed(4096, 64, torch.tensor(word, dtype=torch.int32)) >= int(p * 2**32) - 2**31
        return (kept.double() - (1 - p)) / sqrt(p * (1 - p))

    size = sqrt(4096 * 64)
    for word in (0, 1, 77):
        made = drawn(word)
        assert abs(made.mean()) * size < 4
        for lag in (1, 2, 3, 16, 32):
            assert abs((made[:, lag:] * made[:, :-lag]).mean()) * size < 4
            assert abs((made[lag:] * made[:-lag]).mean()) * size < 4
        # A row more of which stays, or a column, is one by chance.
        for axis, count in ((0, 4096), (1, 64)):
            means = made.mean(axis) * sqrt(count)
            assert abs(means.square().mean() - 1) < 5 * sqrt(2 / len(means))
        for other in (2, 3, 64, 2**30):
            assert abs((made * drawn(other)).mean()) * size < 4


def test_gradients() -> None:
    x, *pairs = given(2, 3, 4, inner=3)
    held = [each.requires_grad_() for each in (x, *(part for pair in pairs for part in pair))]

    def run(*flat: Tensor) -> Tensor:
        return feed_forward(flat[0], flat[1:3], flat[3:5], flat[5:7])  # type: ignore[arg-type]

    assert torch.autograd.gradcheck(run, held)


def test_dropout_draws_from_the_global_generator() -> None:
    x, *pairs = given(9, 5)
    made = []
    for seed in (0, 0, 1):
        torch.manual_seed(seed)
        made.append(feed_forward(x, *pairs, dropout=0.5))
    assert torch.equal(made[0], made[1])
    assert not torch.equal(made[0], made[2])


def test_points_of_a_batch_are_points() -> None:
    x, *pairs = given(2, 3, 5)
    assert torch.allclose(feed_forward(x, *pairs)[1], feed_forward(x[1], *pairs))
    assert feed_forward_backend(x, pairs[1][0]) == "eager"


def test_what_is_refused() -> None:
    x, norm, enter, leave = given(4, 5)
    with pytest.raises(ShapeError, match="feed_forward: axis `i`"):
        feed_forward(x, norm, enter, (leave[0][:, 1:], leave[1]))
    with pytest.raises(BadInput, match="feed_forward: dropout is 1"):
        feed_forward(x, norm, enter, leave, dropout=1)
