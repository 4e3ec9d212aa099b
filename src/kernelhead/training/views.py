"""Images as training shows them: moved, mirrored, turned."""

import torch
from torch import Tensor
from torch.nn import functional as F


def moved(x: Tensor, *, shift: int, mirror: bool) -> Tensor:
    """Images moved by up to `shift` pixels each way, black coming in, and half of them mirrored.

    Draws are those of the device's global generator, one for each image.

    Shapes: x (b, c, h, w); returns the same.

    Example:
        >>> x = torch.arange(4, dtype=torch.uint8).view(1, 1, 2, 2)
        >>> torch.equal(moved(x, shift=0, mirror=False), x)
        True
    """
    cases, channels, high, wide = x.shape
    down, aside = (torch.randint(0, 2 * shift + 1, (cases, 1), device=x.device) for _ in range(2))
    rows = torch.arange(high, device=x.device) + down  # (b, h)
    places = torch.arange(wide, device=x.device).expand(cases, wide)
    if mirror:
        places = torch.where(torch.rand(cases, 1, device=x.device) < 0.5, wide - 1 - places, places)
    columns = places + aside  # (b, w)
    case, channel = torch.arange(cases, device=x.device), torch.arange(channels, device=x.device)
    return F.pad(x, (shift,) * 4)[
        case[:, None, None, None],
        channel[None, :, None, None],
        rows[:, None, :, None],
        columns[:, None, None, :],
    ]


def turned(x: Tensor) -> Tensor:
    """Square images, each in one of the eight ways to lay a square down.

    Draws are those of the device's global generator, three for each image.

    Shapes: x (b, c, h, h); returns the same.

    Example:
        >>> x = torch.arange(9).view(1, 1, 3, 3)
        >>> turned(x)[0, 0, 1, 1]
        tensor(4)
    """
    aside, over, across = (torch.rand(len(x), 1, 1, 1, device=x.device) < 0.5 for _ in range(3))
    x = torch.where(aside, x.flip(-1), x)
    x = torch.where(over, x.flip(-2), x)
    return torch.where(across, x.mT, x)
