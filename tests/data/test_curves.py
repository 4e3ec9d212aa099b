"""instance_curves: its sizes, its draw, what a view is without noise, its words."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernelhead.data import instance_curves
from kernelhead.errors import BadInput


@given(instances=st.integers(1, 5), views=st.integers(1, 5), width=st.integers(2, 9), seed=st.integers(0, 99))
def test_views_lie_on_the_sphere_and_are_labelled(instances: int, views: int, width: int, seed: int) -> None:
    drawn = instance_curves(instances, views=views, width=width, seed=seed)
    assert drawn.x.shape == (instances * views, width)
    assert np.allclose(np.linalg.norm(drawn.x, axis=1), 1, atol=1e-6)
    assert drawn.labels == tuple(str(i) for i in range(instances) for _ in range(views))


def test_a_seed_names_a_draw() -> None:
    first, again, other = (instance_curves(3, seed=seed).x for seed in (0, 0, 1))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)


def test_without_noise_views_span_two_harmonics_and_without_an_arc_they_are_one() -> None:
    x = instance_curves(1, views=12, width=16, noise=0.0, seed=0).x
    assert np.linalg.matrix_rank(x, tol=1e-4) == 4
    still = instance_curves(2, views=5, noise=0.0, arc=0.0, seed=0).x
    assert np.allclose(still[:5], still[0], atol=1e-6)
    assert not np.allclose(still[5], still[0], atol=0.1)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"instances": 0}, "instances is 0"),
        ({"views": 0}, "views is 0"),
        ({"width": 0}, "width is 0"),
        ({"seed": -1}, "seed is -1"),
        ({"arc": -1.0}, "arc is -1.0, noise 0.9, expected 0 or more"),
        ({"noise": float("nan")}, "arc is 2.2, noise nan, expected 0 or more"),
    ],
)
def test_a_wrong_size_is_named(changed: dict[str, float], words: str) -> None:
    with pytest.raises(BadInput, match=f"instance_curves: {words}"):
        instance_curves(**({"instances": 2, "seed": 0} | changed))
