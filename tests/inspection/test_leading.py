"""Leading values without a matrix: products and values against the dense ones, memory, words."""

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kernelhead.errors import BadInput, NotConverged
from kernelhead.inspection.leading import SoftmaxProducts, leading
from kernelhead.nn.hosts import Sides
from tests.inputs import points
from tests.oracles.ksvd import kernel_svd
from tests.tolerance import assert_exact, assert_same_span

KINDS = ["plain", "causal", "bias", "window", "blind"]


def sides(
    kind: str = "plain", *, n: int = 40, m: int | None = None, sharp: float = 2.0, seed: int = 0
) -> Sides:
    m = n if m is None else m
    query, key, value = points(1, 2, n, 8, seed=seed), points(1, 2, m, 8, seed=1), points(1, 2, m, 8, seed=2)
    bias: torch.Tensor | None = None
    if kind == "bias":
        bias = points(1, 2, n, m, seed=3)
    if kind in ("window", "blind"):
        apart = (torch.arange(n)[:, None] - torch.arange(m)).abs()
        hidden = apart > 5
        hidden[3] |= kind == "blind"
        bias = torch.zeros(1, 1, n, m, dtype=torch.float64).masked_fill(hidden, -torch.inf)
    return Sides(query * sharp, key, value, None, kind == "causal", 8**-0.5, bias)


@pytest.mark.parametrize("entries", [1, 300, 2**20], ids="entries{}".format)
@pytest.mark.parametrize("m", [40, 47])
@pytest.mark.parametrize("kind", KINDS)
def test_products_are_those_of_the_pattern(kind: str, m: int, entries: int) -> None:
    case = sides(kind, m=m)
    products, dense = SoftmaxProducts(case, entries=entries), case.pattern().matrix()[0]
    right, left = points(2, m, 11, seed=4), points(2, 40, 3, seed=5)
    assert_exact(products.apply(right), dense @ right)
    assert_exact(products.apply_transposed(left), dense.mT @ left)
    assert_exact(products.energy, dense.square().sum((-2, -1)))


@pytest.mark.parametrize("sharp", [0.1, 1.0, 4.0])
@pytest.mark.parametrize("kind", KINDS)
def test_leading_values_are_within_the_tolerance_from_below(kind: str, sharp: float) -> None:
    case = sides(kind, n=150, sharp=sharp)
    expected = torch.linalg.svdvals(case.pattern().matrix()[0])[:, :12]
    found = leading(SoftmaxProducts(case), 12).values
    assert bool((found <= expected * (1 + 1e-10) + 1e-12).all())
    assert bool((found >= expected * (1 - 1e-3) - 1e-12).all())


@given(n=st.integers(1, 30), m=st.integers(1, 30), count=st.integers(1, 12), seed=st.integers(0, 99))
def test_values_of_any_shape(n: int, m: int, count: int, seed: int) -> None:
    case = sides(n=n, m=m, seed=seed)
    found = leading(SoftmaxProducts(case), count)
    assert found.values.shape == (2, min(n, m, count))
    assert found.left.shape == (2, n, min(n, m, count))
    expected = torch.linalg.svdvals(case.pattern().matrix()[0])[:, :count]
    torch.testing.assert_close(found.values, expected, rtol=1e-3, atol=1e-12)


def test_against_rotations_by_hand() -> None:
    case = sides(n=24)
    found = leading(SoftmaxProducts(case), 24)
    for head, entries in enumerate(case.pattern().matrix()[0]):
        left, values, _ = kernel_svd(entries)
        # The basis spans everything: nothing is approximate.
        assert_exact(found.values[head], values, bound=1e-9)
        assert_same_span(found.left[head, :, :5], left[:, :5], bound=1e-6)


def test_equal_values_come_as_often_as_they_are() -> None:
    # Logits so far apart that the pattern is the identity.
    far = 100 * torch.eye(40, dtype=torch.float64)[None, None]
    found = leading(SoftmaxProducts(Sides(far, far, far, None, False, 1.0)), 20).values
    assert_exact(found, torch.ones(1, 20, dtype=torch.float64))


def test_a_pattern_of_rank_one_has_one_value() -> None:
    flat = torch.zeros(1, 1, 60, 4)
    found = leading(SoftmaxProducts(Sides(flat, flat, flat, None, False, 1.0)), 10).values[0]
    torch.testing.assert_close(found[0], torch.tensor(1.0))
    assert float(found[1:].max()) < 1e-5


def test_half_precision_is_widened() -> None:
    case = sides()
    low = Sides(case.query.bfloat16(), case.key.bfloat16(), case.value.bfloat16(), None, False, case.scale)
    assert leading(SoftmaxProducts(low), 4).values.dtype == torch.float32


def test_the_same_values_twice() -> None:
    first, second = (leading(SoftmaxProducts(sides(n=90)), 8).values for _ in range(2))
    assert torch.equal(first, second)


def test_no_matrix_of_all_pairs_is_made() -> None:
    largest = 0

    class Watching(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            nonlocal largest
            made = func(*args, **(kwargs or {}))
            for each in torch.utils._pytree.tree_leaves(made):
                if isinstance(each, torch.Tensor):
                    largest = max(largest, each.untyped_storage().nbytes() // each.element_size())
            return made

    case = sides("causal", n=600)
    with Watching():
        leading(SoftmaxProducts(case, entries=2 * 600 * 10), 6)
    assert 0 < largest < 600 * 600 / 2


@pytest.mark.parametrize(("n", "m"), [(30, 30), (30, 50), (50, 30)])
@pytest.mark.parametrize("groups", [1, 3])
def test_groups_of_points_that_see_each_other_only(groups: int, n: int, m: int) -> None:
    # As many equal values as there are groups, and zeros: fewer than the columns of a block.
    rows, columns = torch.arange(n) % groups, torch.arange(m) % groups
    bias = torch.zeros(n, m, dtype=torch.float64).masked_fill(rows[:, None] != columns, -torch.inf)
    flat = points(1, 1, 50, 4) * 0
    case = Sides(flat[:, :, :n], flat[:, :, :m], flat[:, :, :m], None, False, 1.0, bias[None, None])
    expected = torch.linalg.svdvals(case.pattern().matrix()[0])[:, :25]
    assert_exact(leading(SoftmaxProducts(case), 25).values, expected)


def test_values_that_do_not_settle_are_told() -> None:
    products = SoftmaxProducts(sides(n=150))
    with pytest.warns(
        NotConverged, match=r"leading: a value moved by .* in round 2, expected 1.0e-12 at most"
    ):
        leading(products, 10, tolerance=1e-12, most=2)


@pytest.mark.parametrize("name", ["count", "most"])
def test_sizes_are_checked(name: str) -> None:
    with pytest.raises(BadInput, match=f"leading: {name} is 0, expected a whole number of at least 1"):
        leading(SoftmaxProducts(sides()), **({"count": 3} | {name: 0}))
