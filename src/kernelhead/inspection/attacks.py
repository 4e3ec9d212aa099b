"""What misleads a classifier: pixels moved within a budget, keys spoilt, points dropped."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from math import inf, isfinite

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from kernelhead.errors import BadInput, unknown
from kernelhead.nn import AbstractKernelAttention, evaluating
from kernelhead.rng import generator as seeded_generator
from kernelhead.rng import mixed
from kernelhead.shapes import check_axes, check_size

UNITS = ("entry", "point")
PIXELS = (0.0, 1.0)
REMEMBERED = 0.9, 0.999  # of slopes and of their squares, in Adam
TINY = 1e-8


def fgsm(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    *,
    budget: float,
    clip: tuple[float, float] = PIXELS,
    batch: int = 500,
) -> Tensor:
    r"""One step of size `budget` along the sign of the gradient of the loss (Fast Gradient Sign Method).

    The budget is a bound on every pixel, in the units of `x`: what normalises pixels belongs into the
    model. The model is in evaluation mode meanwhile, and no gradient reaches its weights.

    Shapes: x (b, c, h, w), y (b,); returns the shape of x.

    Args:
        model: from pixels to scores (b, classes).
        x: images inside the range `clip`.
        y: their true classes.
        budget: most that a pixel may change.
        clip: least and greatest value of a pixel.
        batch: images in one call of the model.

    Raises:
        ShapeError: x and y are of different lengths, or of other axes.
        BadInput: the budget or the range is none, pixels lie outside it, or labels are not whole numbers.

    Example:
        >>> model, x = nn.Sequential(nn.Flatten(), nn.Linear(16, 3)), torch.full((2, 1, 4, 4), 0.5)
        >>> bool(((fgsm(model, x, torch.tensor([0, 2]), budget=0.1) - x).abs() <= 0.1001).all())
        True
    """
    _check("fgsm", x, y, budget, clip, batch)
    moved = []
    with _still(model):
        for part, labels in _parts(batch, x, y):
            low, high = _box(part, budget, clip)
            _, slope = _loss_and_slope(model, part, labels)
            moved.append(_between(part + budget * slope.sign(), low, high))
    return torch.cat(moved)


def pgd(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    *,
    budget: float,
    generator: torch.Generator,
    steps: int = 10,
    step: float | None = None,
    clip: tuple[float, float] = PIXELS,
    batch: int = 500,
) -> Tensor:
    """Steps along the sign of the gradient from a random start (Projected Gradient Descent).

    Of all points on the way that of the largest loss is returned, for each image. See `fgsm` for what
    the budget is and what happens to the model.

    Shapes: x (b, c, h, w), y (b,); returns the shape of x.

    Args:
        generator: draws the start, uniform within the budget.
        steps: gradients taken.
        step: size of one; 2.5 times the budget over the steps if None.

    Raises:
        ShapeError: x and y are of different lengths, or of other axes.
        BadInput: as `fgsm`, or a step is not above zero.

    Example:
        >>> model, x = nn.Sequential(nn.Flatten(), nn.Linear(16, 3)), torch.full((2, 1, 4, 4), 0.5)
        >>> draws = torch.Generator().manual_seed(0)
        >>> pgd(model, x, torch.tensor([0, 2]), budget=0.1, generator=draws, steps=3).shape
        torch.Size([2, 1, 4, 4])
    """
    _check("pgd", x, y, budget, clip, batch)
    check_size("pgd", "steps", steps)
    if step is not None and not 0 < step < inf:
        raise BadInput(f"pgd: step is {step!r}, expected a number above 0")
    pace = 2.5 * budget / steps if step is None else step
    # Drawn for all images at once: how they are split into batches changes nothing.
    noise = torch.rand(x.shape, generator=generator, device=generator.device, dtype=x.dtype).to(x.device)
    found = []
    with _still(model):
        for part, labels, start in _parts(batch, x, y, 2 * noise - 1):
            low, high = _box(part, budget, clip)
            point = _between(part + budget * start, low, high)
            loss, slope = _loss_and_slope(model, point, labels)
            best, largest = point, loss
            for left in reversed(range(steps)):
                point = _between(point + pace * slope.sign(), low, high)
                if left:
                    loss, slope = _loss_and_slope(model, point, labels)
                else:
                    with torch.no_grad():
                        loss = _losses(model, point, labels)
                higher = loss > largest
                best = torch.where(higher[:, None, None, None], point, best)
                largest = torch.where(higher, loss, largest)
            found.append(best)
    return torch.cat(found)


@torch.no_grad()
def spsa(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    *,
    budget: float,
    generator: torch.Generator,
    steps: int = 20,
    samples: int = 32,
    delta: float = 0.01,
    rate: float = 0.01,
    clip: tuple[float, float] = PIXELS,
    batch: int = 2048,
) -> Tensor:
    """Adam on the margin with slopes from differences of scores: no gradient of the model is asked for.

    Simultaneous Perturbation Stochastic Approximation: a slope is the mean over directions of +1 and
    -1 of the difference quotient, taken at the point that the attack has reached. Points at which the
    model is asked lie up to `delta` outside the budget and the range; what is returned lies in both. What
    is drawn depends on `batch`.

    Shapes: x (b, c, h, w), y (b,); returns the shape of x.

    Args:
        generator: draws the directions.
        steps: of Adam.
        samples: directions of one slope, each asked on both sides.
        delta: how far on each side.
        rate: of Adam, in pixels a step.
        batch: images in one call of the model.

    Raises:
        ShapeError: x and y are of different lengths, or of other axes.
        BadInput: as `fgsm`, or a number is not above zero.

    Example:
        >>> model, x = nn.Sequential(nn.Flatten(), nn.Linear(16, 3)), torch.full((2, 1, 4, 4), 0.5)
        >>> draws = torch.Generator().manual_seed(0)
        >>> spsa(model, x, torch.tensor([0, 2]), budget=0.1, generator=draws, steps=3).shape
        torch.Size([2, 1, 4, 4])
    """
    _check("spsa", x, y, budget, clip, batch)
    check_size("spsa", "steps", steps)
    check_size("spsa", "samples", samples)
    for name, value in (("delta", delta), ("rate", rate)):
        if not 0 < value < inf:
            raise BadInput(f"spsa: {name} is {value!r}, expected a number above 0")
    found = []
    with _still(model):
        for part, labels in _parts(max(batch // (2 * samples), 1), x, y):
            low, high = _box(part, budget, clip)
            point, mean, square = part, torch.zeros_like(part), torch.zeros_like(part)
            for number in range(1, steps + 1):
                slope = _estimated_slope(model, point, labels, generator, samples, delta, batch)
                mean = REMEMBERED[0] * mean + (1 - REMEMBERED[0]) * slope
                square = REMEMBERED[1] * square + (1 - REMEMBERED[1]) * slope.square()
                spread = (square / (1 - REMEMBERED[1] ** number)).sqrt() + TINY
                move = mean / (1 - REMEMBERED[0] ** number) / spread
                point = _between(point + rate * move, low, high)
            found.append(point)
    return torch.cat(found)


@contextmanager
def contaminate_keys(
    model: nn.Module,
    *,
    share: float,
    factor: float = 10.0,
    unit: str = "entry",
    layers: Sequence[int] | None = None,
    seed: int = 0,
) -> Iterator[None]:
    """Spoil the keys of a model's attentions inside the block.

    What the key projection of a layer returns is replaced at random places by plus or minus `factor` times
    the mean size of the keys of that sample and head. Where keys also attend, as in symmetric
    attention, both sides of the pattern are spoilt. The same seed spoils the same places in every
    model of the same sizes on one kind of device.

    Args:
        model: any module with attentions of kernelhead that have keys.
        share: probability with which a place is spoilt.
        factor: of the mean size.
        unit: a place is an "entry" of a key, or a "point" with all its entries.
        layers: numbers of the attentions in the order of the model; all if None.
        seed: names the draw, with the layer and its call.

    Raises:
        BadInput: the share or the factor is out of range, or there is no such attention.
        UnknownName: no such unit.

    Example:
        >>> from kernelhead.nn import SoftmaxAttention
        >>> layer, x = SoftmaxAttention(8, heads=2), torch.randn(1, 5, 8)
        >>> with contaminate_keys(layer, share=0.5):
        ...     spoilt = layer(x)
        >>> torch.equal(spoilt, layer(x))
        False
    """
    who = "contaminate_keys"
    _check_share(who, share)
    if not 0 <= factor < inf:
        raise BadInput(f"{who}: factor is {factor!r}, expected a finite number of at least 0")
    if unit not in UNITS:
        raise unknown(who, "unit", unit, UNITS)
    found = [
        each
        for each in model.modules()
        if isinstance(each, AbstractKernelAttention) and isinstance(getattr(each, "key", None), nn.Module)
    ]
    chosen = range(len(found)) if layers is None else layers
    if not found or not all(0 <= number < len(found) for number in chosen):
        wanted = "any" if layers is None else list(layers)
        raise BadInput(
            f"{who}: {type(model).__name__} has {len(found)} attentions with keys, asked for {wanted}"
        )
    hooks = []
    try:
        for number in chosen:
            hook = _Spoiler(found[number].heads, share, factor, unit, (seed, number))
            hooks.append(found[number].get_submodule("key").register_forward_hook(hook))
        yield
    finally:
        for handle in hooks:
            handle.remove()


def drop_points(cases: int, points: int, *, share: float, seed: int = 0) -> Tensor:
    """A mask for `keep` of a model, with the same number of points dropped in every case.

    Shapes: returns (cases, points), True where a point is kept.

    Args:
        cases: how many.
        points: of a case.
        share: of the points that is dropped, rounded to a whole number; one point is always kept.
        seed: names the draw.

    Raises:
        BadInput: the share is not from 0 to 1, or a size is below one.

    Example:
        >>> drop_points(2, 8, share=0.25).sum(1)
        tensor([6, 6])
    """
    check_size("drop_points", "cases", cases)
    check_size("drop_points", "points", points)
    _check_share("drop_points", share)
    order = torch.rand(cases, points, generator=seeded_generator(seed)).argsort(1)
    dropped = min(round(share * points), points - 1)
    return torch.ones(cases, points, dtype=torch.bool).scatter(1, order[:, :dropped], False)


class _Spoiler:
    """Replaces keys, (b, n, c), by large values at places that depend on the seed and the call."""

    def __init__(self, heads: int, share: float, factor: float, unit: str, seed: tuple[int, int]) -> None:
        self.heads, self.share, self.factor, self.unit, self.seed = heads, share, factor, unit, seed
        self.calls = count()

    def __call__(self, _: nn.Module, given: tuple[Tensor, ...], keys: Tensor) -> Tensor:
        source = torch.Generator(keys.device).manual_seed(mixed(*self.seed, next(self.calls)))
        width = keys.shape[-1] if self.unit == "entry" else 1
        struck = torch.rand(*keys.shape[:-1], width, generator=source, device=keys.device) < self.share
        signs = torch.randint(0, 2, keys.shape, generator=source, device=keys.device) * 2 - 1
        split = keys.unflatten(-1, (self.heads, -1))  # (b, n, h, d)
        size = split.abs().mean((-3, -1), keepdim=True).expand_as(split).flatten(-2)
        return torch.where(struck, (self.factor * size * signs).to(keys.dtype), keys)


@contextmanager
def _still(model: nn.Module) -> Iterator[None]:
    """Evaluation mode, and weights that want no gradient, inside the block."""
    wanting = [weight for weight in model.parameters() if weight.requires_grad]
    try:
        with evaluating(model):
            for weight in wanting:
                weight.requires_grad_(False)
            yield
    finally:
        for weight in wanting:
            weight.requires_grad_(True)


def _parts(batch: int, *tensors: Tensor) -> Iterable[tuple[Tensor, ...]]:
    return zip(*(each.detach().split(batch) for each in tensors), strict=True)


def _box(x: Tensor, budget: float, clip: tuple[float, float]) -> tuple[Tensor, Tensor]:
    """Least and greatest value that every pixel may take."""
    return (x - budget).clamp_min(clip[0]), (x + budget).clamp_max(clip[1])


def _between(x: Tensor, low: Tensor, high: Tensor) -> Tensor:
    return torch.minimum(torch.maximum(x, low), high)


def _losses(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(model(x), y, reduction="none")


def _loss_and_slope(model: nn.Module, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """The loss of every image, and its gradient there."""
    with torch.enable_grad():
        x = x.detach().requires_grad_()
        losses = _losses(model, x, y)
        (slope,) = torch.autograd.grad(losses.sum(), x)
    return losses.detach(), slope


def _estimated_slope(
    model: nn.Module,
    point: Tensor,
    y: Tensor,
    source: torch.Generator,
    samples: int,
    delta: float,
    batch: int,
) -> Tensor:
    """The slope of the margin at a point, (b, c, h, w), from differences along random directions."""
    shape = (samples, *point.shape)
    ways = torch.randint(0, 2, shape, generator=source, device=source.device).to(point) * 2 - 1
    asked = torch.cat([point + delta * ways, point - delta * ways]).flatten(0, 1)
    scores = torch.cat([model(part) for part in asked.split(batch)])  # (2 samples b, classes)
    right = y.repeat(2 * samples)[:, None]
    margin = scores.scatter(1, right, -inf).amax(1) - scores.gather(1, right)[:, 0]
    ahead, behind = margin.view(2, samples, -1, 1, 1, 1)
    return ((ahead - behind) / (2 * delta) * ways).mean(0)


def _check(who: str, x: Tensor, y: Tensor, budget: float, clip: tuple[float, float], batch: int) -> None:
    check_axes(who, x=(x, "b c h w"), y=(y, "b"))
    check_size(who, "batch", batch)
    if y.is_floating_point() or not x.is_floating_point():
        raise BadInput(f"{who}: `x` is {x.dtype} and `y` {y.dtype}, expected real and whole numbers")
    if not 0 <= budget < inf:
        raise BadInput(f"{who}: budget is {budget!r}, expected a finite number of at least 0")
    if not clip[0] < clip[1] or not all(map(isfinite, clip)):
        raise BadInput(f"{who}: the range of a pixel is {clip}, expected two numbers, the lower first")
    if len(x) == 0:
        raise BadInput(f"{who}: `x` {tuple(x.shape)} holds no image")
    least, most = x.detach().aminmax()
    if not clip[0] <= float(least) <= float(most) <= clip[1]:
        raise BadInput(
            f"{who}: pixels run from {float(least):g} to {float(most):g}, outside their range {clip}"
        )


def _check_share(who: str, share: float) -> None:
    if not 0 <= share <= 1:
        raise BadInput(f"{who}: share is {share!r}, expected a number from 0 to 1")
