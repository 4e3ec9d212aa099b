"""Mixing of neighbours in plain PyTorch."""

from torch import Tensor
from torch.nn import functional as F


def local_mix(x: Tensor, weight: Tensor, bias: Tensor, dilation: int, causal: bool) -> Tensor:
    """Sums over taps of a weight times the point that far away, (b, n, c), in the precision of x.

    Points as rows of `dilation` are an image with its channels last, and taps meet points of one column: a
    convolution without a distance between taps and without points as columns, which cost most on a CPU.
    """
    taps, points = len(weight), x.shape[1]
    middle, reach = (taps - 1 if causal else taps // 2), (points - 1) // dilation
    first, last = max(middle - reach, 0), min(middle + reach + 1, taps)  # others meet no point
    before, after = (middle - first) * dilation, (last - 1 - middle) * dilation
    padded = F.pad(x, (0, 0, before, after + -points % dilation))
    image = padded.unflatten(1, (-1, dilation)).permute(0, 3, 1, 2)  # (b, c, rows, dilation)
    kernel = weight[first:last].to(x.dtype).mT[:, None, :, None]  # (c, 1, taps, 1)
    mixed = F.conv2d(image, kernel, bias.to(x.dtype), groups=x.shape[2])
    return mixed.permute(0, 2, 3, 1).flatten(1, 2)[:, :points]
