"""Claims that softmax attention, once trained, is a kernel PCA of its keys (arXiv 2406.13762).

Attention on the values of kernel PCA projects on principal components: an identity. Whether training finds
such values is a question, which the paper answers with yes. Its evidence: with gamma = K a / (n a), constant
for an eigenvector a of the centred Gram matrix K, the differences |gamma_i - gamma_j| are near zero.
"""

import pytest
import torch
from torch.nn.functional import cross_entropy

from kernelhead.data import echo_series, padded
from kernelhead.decomposition import kpca_values
from kernelhead.inspection import Read, alignment, sides_of
from kernelhead.models import SequenceClassifier
from kernelhead.rng import seeded
from tests.inputs import points

VERDICTS = {
    "attention on kernel-PCA values is a projection": "holds",
    "trained values are kernel-PCA values": "does not hold",
    "differences of gamma near zero confirm it": "does not hold",
}


@pytest.fixture(scope="module")
def trained() -> Read:
    """Queries, keys and values of two softmax layers that have learned to tell echoes apart."""
    series = echo_series(64, length=24, channels=2, classes=2, seed=0)
    values, real = padded(series, range(64))
    x, mask = torch.from_numpy(values).float(), torch.from_numpy(real)
    labels = torch.tensor([series.classes.index(label) for label in series.labels or ()])
    with seeded(0):
        model = SequenceClassifier(2, channels=2, width=16, heads=2, depth=2, attention="softmax")
        optimiser = torch.optim.Adam(model.parameters(), lr=1e-2)
        for _ in range(60):
            loss = cross_entropy(model(x, mask), labels)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
    assert loss.item() < 0.1, "the model has not learned"
    return sides_of(model, x[:16], mask[:16])


def test_trained_values_are_no_nearer_than_a_random_layer_of_the_same_points(trained: Read) -> None:
    for sides in trained.sides.values():
        found = alignment(sides.query, sides.key, sides.value, mask=sides.mask, points=sides.points)
        assert found.verdict == "does not hold"
        for head, redrawn in zip(found.heads, found.baselines["redrawn"], strict=True):
            assert head.explained < redrawn.explained + 0.1
            assert head.cosine_mean < redrawn.cosine_mean + 0.1
        # No projection is longer than what it projects.
        assert max(head.bessel_rate for head in found.heads) > 0.01


def test_kernel_pca_values_of_the_same_keys_are_told_apart(trained: Read) -> None:
    for sides in trained.sides.values():
        assert sides.mask is not None
        long = sides.mask.sum(1) > 12
        query, key, x, mask = sides.query[long], sides.key[long], sides.points[long], sides.mask[long]
        found = alignment(query, key, kpca_values(key, 8, mask=mask[:, None]), mask=mask, points=x)
        assert found.verdict == "holds"
        assert all(head.bessel_rate == 0 for head in found.heads)


@pytest.mark.parametrize("noise", [0.1, 0.3])
def test_gamma_is_near_constant_in_absolute_terms_for_perturbed_eigenvectors(noise: float) -> None:
    key = points(1, 1, 60, 16)
    value = kpca_values(key, 8)
    scale = value.norm(dim=-2, keepdim=True) / 60**0.5
    exact, moved = (
        alignment(key, key, value),
        alignment(key, key, value + noise * scale * points(1, 1, 60, 8, seed=1)),
    )
    assert moved.heads[0].gamma_absolute < 2e-3
    assert moved.heads[0].gamma_relative > 0.2
    assert exact.heads[0].gamma_relative < 1e-3


def test_gamma_is_near_constant_in_absolute_terms_for_random_values() -> None:
    key = points(1, 1, 60, 16)
    found = alignment(key, key, points(1, 1, 60, 8, seed=1))
    assert found.heads[0].gamma_absolute < 2e-3
    assert found.heads[0].gamma_relative > 0.5
    assert found.verdict == "does not hold"
