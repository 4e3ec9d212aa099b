"""Images as training shows them: windows of them, mirrored, and laid down in eight ways."""

import torch
from torch import nn

from kernelhead.rng import seeded
from kernelhead.training.views import moved, turned


def test_a_moved_image_is_a_window_of_it_in_black_or_mirrored() -> None:
    x = torch.arange(1, 13, dtype=torch.uint8).view(1, 1, 3, 4).repeat(64, 2, 1, 1)
    with seeded(0):
        made = moved(x, shift=1, mirror=True)
    assert made.shape == x.shape
    assert made.dtype == torch.uint8
    around = nn.functional.pad(x[0], (1,) * 4)
    windows = [around[:, down : down + 3, aside : aside + 4] for down in range(3) for aside in range(3)]
    known = {tuple(each.flatten().tolist()) for window in windows for each in (window, window.flip(-1))}
    found = {tuple(each.flatten().tolist()) for each in made}
    assert found <= known
    assert len(found) > 12


def test_no_shift_and_no_mirror_change_nothing() -> None:
    x = torch.randint(0, 256, (3, 1, 4, 5), dtype=torch.uint8)
    assert torch.equal(moved(x, shift=0, mirror=False), x)


def test_a_turned_image_is_one_of_eight_and_all_of_them_come() -> None:
    x = torch.arange(9, dtype=torch.uint8).view(1, 1, 3, 3).repeat(200, 2, 1, 1)
    with seeded(0):
        made = turned(x)
    assert made.shape == x.shape
    assert made.dtype == torch.uint8
    ways = [x[0].rot90(times, (1, 2)) for times in range(4)]
    known = {tuple(each.flatten().tolist()) for way in ways for each in (way, way.mT)}
    assert len(known) == 8
    assert {tuple(each.flatten().tolist()) for each in made} == known
