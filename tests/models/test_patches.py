"""PatchAttention: scores against loops, histograms that sum to one, lengths, draws, and its words."""

import math

import pytest
import torch
from torch import Tensor

from kernelhead.errors import BadInput, ShapeError
from kernelhead.models import PatchAttention
from kernelhead.models.patches import KINDS, Group
from tests.inputs import points


def series(cases: int = 5, channels: int = 3, n: int = 30) -> Tensor:
    return points(cases, channels, n, dtype=torch.float32)


def drawn(x: Tensor, lengths: Tensor | None = None, **options: int) -> PatchAttention:
    whole = torch.full((len(x),), x.shape[2]) if lengths is None else lengths
    return PatchAttention.drawn(x, whole, seed=0, **{"groups": 1, "marks": 4, **options})


@pytest.mark.parametrize("kind", KINDS)
def test_scores_by_loops(kind: str) -> None:
    x, patches = points(2, 3, 12), points(4, 2, 3, seed=1)
    channels, dilation = torch.tensor([0, 2]), 2
    made = Group(kind, channels, patches, dilation, 1.0).scores(x)
    assert made.shape == (2, 4, 8)
    for case in range(2):
        for mark in range(4):
            for t in range(8):
                window = [[float(x[case, c, t + dilation * i]) for i in range(3)] for c in channels.tolist()]
                pairs = [(window[c][i], float(patches[mark, c, i])) for c in range(2) for i in range(3)]
                product = sum(q * k for q, k in pairs)
                if kind == "distance":
                    wanted = (product - sum(k * k for _, k in pairs) / 2) / 6
                else:
                    mean = sum(q for q, _ in pairs) / 6
                    wanted = product / (math.sqrt(sum((q - mean) ** 2 for q, _ in pairs)) + 1e-2)
                assert float(made[case, mark, t]) == pytest.approx(wanted, rel=1e-9)


def test_distance_gives_the_attention_of_a_gaussian_kernel() -> None:
    x, patches = points(1, 2, 9), points(4, 2, 3, seed=1)
    scores = Group("distance", torch.tensor([0, 1]), patches, 1, 1.0).scores(x)[0]
    windows = x[0].unfold(1, 3, 1).transpose(0, 1)  # (windows, 2, 3)
    gaussian = -(windows[:, None] - patches).square().sum((2, 3)) / 2 / 6  # (windows, marks)
    torch.testing.assert_close(scores.softmax(0), gaussian.softmax(1).mT)


def test_histograms_sum_to_one_and_matches_lie_within_their_bounds() -> None:
    x = series()
    made = drawn(x)
    parts = made.features(x, torch.full((5,), 30)).split(4, dim=1)
    assert len(parts) == 2 * len(made.groups)
    for attended in parts[::2]:
        torch.testing.assert_close(attended.square().sum(1), torch.ones(5))
    for group, best in zip(made.groups, parts[1::2], strict=True):
        assert best.isfinite().all()
        assert group.kind == "distance" or bool((best.abs() <= 1).all())


def test_a_patch_finds_itself() -> None:
    x = series(cases=1, channels=1, n=50)
    made = drawn(x, marks=3, sizes=(7,))  # type: ignore[arg-type]
    shapes = [group for group in made.groups if group.kind == "shape"]
    for group in shapes:
        best = group.scores(x).amax(2)
        assert bool((best > 0.98).all())


def test_what_follows_the_end_does_not_matter() -> None:
    x, lengths = series(), torch.tensor([30, 30, 21, 30, 25])
    made = drawn(x, lengths)
    before = made.features(x, lengths)
    x[2, :, 21:] = 100.0
    x[4, :, 25:] = -7.0
    after = made.features(x, lengths)
    fits = torch.tensor([(g.patches.shape[2] - 1) * g.dilation < 21 for g in made.groups])
    kept = fits.repeat_interleave(8)  # four marks, two figures
    assert torch.equal(before[:, kept], after[:, kept])


def test_a_seed_names_the_draw_and_pieces_do_not_matter() -> None:
    x = series(cases=70)
    lengths = torch.full((70,), 30)
    made = drawn(x).features(x, lengths)
    assert torch.equal(made, drawn(x).features(x, lengths))
    torch.testing.assert_close(made[60:], drawn(x).features(x[60:], lengths[60:]))
    other = PatchAttention.drawn(x, lengths, seed=1, groups=1, marks=4)
    assert not torch.equal(other.features(x, lengths), made)


def test_what_is_refused() -> None:
    x = series()
    with pytest.raises(ShapeError, match=r"PatchAttention.drawn: `x` \(5, 3\) and `lengths` \(5,\)"):
        PatchAttention.drawn(x[..., 0], torch.full((5,), 30), seed=0)
    with pytest.raises(ShapeError, match=r"PatchAttention.features: .* expected \(b, a, n\) and \(b,\)"):
        drawn(x).features(x, torch.tensor([30]))
    with pytest.raises(BadInput, match=r"PatchAttention.drawn: marks is 0"):
        drawn(x, marks=0)
    with pytest.raises(BadInput, match=r"PatchAttention.drawn: size is 0"):
        drawn(x, sizes=(0,))  # type: ignore[arg-type]


@pytest.mark.parametrize("n", [1, 2, 5])
def test_series_shorter_than_any_patch(n: int) -> None:
    x = series(n=n)
    made = drawn(x)
    assert {group.patches.shape[2] for group in made.groups} == {n}
    assert made.features(x, torch.full((5,), n)).isfinite().all()
