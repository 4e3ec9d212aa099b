"""Depth and width of a network from a parameter budget: a fitted law, a threshold of theory, what both cost.

What is sized here is a network to build; `inspection.plan` is something else, a plan of ranks for layers of
a model that exists.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from math import ceil, exp, inf, isfinite, isqrt, lcm, log, sqrt
from sys import maxsize

from kernelhead.errors import BadInput, unknown
from kernelhead.ops import log_separation_rank
from kernelhead.shapes import check_size

BLOCK = 12  # weights of a block over the square of its width, biases and norms left out
HEAD = (3 / 4, 4 / 3)  # between which shares of the wanted width heads may be
KEPT = 34  # bytes of a point and feature that a block keeps for its gradients, 16 bits, fused attention
ADAM = 16  # bytes of a weight in training: two of itself and its gradient each, twelve in float32
MOVED = (
    380  # bytes of a point and feature that a block moves in a step: 108 forward, the rest backward, unfused
)


@dataclass(frozen=True)
class ShapeLaw:
    r"""A transition width $d^*(L) = e^{a + b L}$: up to it L layers do, from it on more would be better.

    A network of L blocks and that width has $N^*(L) = 12 L e^{2a + 2bL}$ weights without embeddings, which
    turned around is the depth of a budget.

    Args:
        name: of the law.
        intercept: a.
        slope: b.
        intercept_error: of a.
        slope_error: of b.
        depths: least and most layers that it was fitted on; infinite where nothing was fitted.

    Example:
        >>> round(LEVINE2020.width(24)), round(LEVINE2020.depth(1e12), 2)
        (585, 94.75)
    """

    name: str
    intercept: float
    slope: float
    intercept_error: float = 0.0
    slope_error: float = 0.0
    depths: tuple[float, float] = (0.0, inf)

    def width(self, depth: float) -> float:
        """The transition width of a depth."""
        return exp(self.intercept + self.slope * depth)

    def params(self, depth: float) -> float:
        """Weights of a network of that depth and its transition width, without embeddings."""
        return BLOCK * depth * self.width(depth) ** 2

    def depth(self, params: float) -> float:
        """The depth, in parts of a layer, of a number of weights; undoes `params`."""
        return _depth(params, self.intercept, self.slope)

    def depth_of_width(self, width: float) -> float:
        """The depth whose transition width is this; undoes `width`, and is negative where that is narrow."""
        return (log(width) - self.intercept) / self.slope

    def depth_range(self, params: float) -> tuple[float, float]:
        """Between which depths the law is, its errors both to one side."""
        a, b, da, db = self.intercept, self.slope, self.intercept_error, self.slope_error
        return _depth(params, a + da, b + db), _depth(params, a - da, b - db)


LEVINE2020 = ShapeLaw("levine2020", 5.039, 5.55e-2, 0.030, 0.13e-2, (6, 48))
THRESHOLD = ShapeLaw("threshold", 0.0, log(3))  # the width at which L layers are log_3 of it
LAWS = {law.name: law for law in (LEVINE2020, THRESHOLD)}

RANGE = (
    "The law is a fit to language models of 6 to 48 layers (3.3 million to 2.8 billion weights), with a "
    "vocabulary of 2,000 and trained near convergence; weights are those without embeddings. It is not for "
    "images, tables or series."
)
EVIDENCE = (
    "For it: 28 layers of width 768 (NeoBERT) and 56 of 3,560 (GatorTron) follow it; Jurassic-1, with 76 "
    "layers in place of 96, reports iterations 1.5 %, batch inference 7 % and generation up to 23 % faster.",
    "Against it: the shape changes the loss by a few per cent only (Kaplan and others 2020). Chinchilla "
    "stays shallower, for time. At 6.4 and 6.9 billion weights 64 layers were worse than 32 by 0.12 nat, "
    "with a critical depth of width to the power 0.44 (arXiv 2601.20994). A small vocabulary or an "
    "embedding of low rank caps the width that is of use (Wies and others 2021).",
    "Deep and narrow networks take more time a weight, and learning rates must be tuned for every width.",
)


@dataclass(frozen=True)
class Regime:
    """Where a shape stands.

    Attributes:
        depth: its layers.
        width: its width.
        params: weights without embeddings, biases and norms included.
        law_depth: layers that the law gives as many weights.
        law_range: the same with the law's errors to one side and the other.
        side: "shallower", "near" or "deeper": against that range, half a layer allowed for rounding.
        threshold: log_3 of the width, up to which theory has depth act double-exponentially.
        efficient: whether the depth is below that threshold.
        log_rank: log_3 of the separation rank of a polynomial network of this shape, one point a side.
        layer_gain: what one more layer adds to that; the width, once depth and width act as a product.
        notes: where this leaves what the law was fitted on, what that was, what speaks for and against it.
    """

    depth: int
    width: int
    params: int
    law_depth: float
    law_range: tuple[float, float]
    side: str
    threshold: float
    efficient: bool
    log_rank: float
    layer_gain: float
    notes: tuple[str, ...]


@dataclass(frozen=True)
class Sizing:
    """A network for a budget.

    Attributes:
        budget: weights that were allowed, without embeddings.
        depth: layers.
        width: a multiple of `heads`.
        heads: of every attention.
        params: weights of the built network without embeddings, never above the budget.
        embedding_params: weights of embeddings and learned positions, which come on top.
        law: by which the depth was chosen; "given" where it was given.
        least_depth: the theory threshold at that size, below which a network has too few layers.
        regime: where the shape stands, and how far the law can be trusted there.
    """

    budget: int
    depth: int
    width: int
    heads: int
    params: int
    embedding_params: int
    law: str
    least_depth: int
    regime: Regime


@dataclass(frozen=True)
class ShapeCost:
    """What a shape costs, counted.

    Attributes:
        forward_flops: of a token, two a multiply-add, at a mean place of the context.
        train_flops: three times as many: forward, and both sides backward.
        weight_bytes: of all weights in 16 bits.
        train_bytes: of all weights in training by Adam with 16 bits: 16 a weight.
        kept_bytes: of a token, kept from forward to backward: about 34 a layer and feature.
        cache_bytes: of a token, keys and values in 16 bits.
        serial: layers that a token goes through one after another, which bounds the time of generation.
        train_seconds: of a token, at the peak rates of a device: operations, and then what blocks move. Real
            steps take longer; it is there for the ratio of two shapes.
    """

    forward_flops: float
    train_flops: float
    weight_bytes: int
    train_bytes: int
    kept_bytes: int
    cache_bytes: int
    serial: int
    train_seconds: float

    def over(self, other: "ShapeCost") -> dict[str, float]:
        """Each cost over that of another shape.

        Example:
            >>> deep, wide = shape_cost(32, 160), shape_cost(8, 320)
            >>> {name: round(ratio, 1) for name, ratio in deep.over(wide).items() if name.startswith("train")}
            {'train_flops': 1.2, 'train_bytes': 1.0, 'train_seconds': 1.8}
        """
        return {name: getattr(self, name) / getattr(other, name) for name in vars(self)}


def depth_threshold(width: int) -> float:
    """The theory threshold log_3 of a width: deeper networks express no more a layer than wider ones.

    Raises:
        BadInput: the width is no such number.

    Example:
        >>> round(depth_threshold(12288), 2)
        8.57
    """
    return log(check_size("depth_threshold", "width", width)) / log(3)


def count_params(depth: int, width: int) -> int:
    """Weights of a `LanguageModel` without embeddings: 12 d^2 + 13 d a block, and 2 d of its last norm.

    Raises:
        BadInput: a size is out of range.

    Example:
        >>> count_params(12, 768)
        85056000
    """
    check_size("count_params", "depth", depth)
    check_size("count_params", "width", width)
    return depth * (BLOCK * width**2 + 13 * width) + 2 * width


def plan_shape(
    budget: int,
    *,
    depth: int | None = None,
    heads: int | None = None,
    head: int = 64,
    multiple: int = 8,
    law: str = "levine2020",
    vocabulary: int = 0,
    longest: int = 0,
) -> Sizing:
    """Depth, width and heads for a number of weights; more budget never gives fewer, and none is exceeded.

    Of all shapes whose depth is the law's at their own size, rounded, the largest that the budget holds.

    Args:
        budget: weights without embeddings.
        depth: layers, in place of the law's.
        heads: of every attention; by default such that each is about `head` wide.
        head: width of a head that is aimed at, from three quarters of it to four thirds.
        multiple: of which the width is one; 1 comes nearest to the law, 8 suits a GPU.
        law: "levine2020", fitted, or "threshold", by theory: the least depth that is of use.
        vocabulary: tokens of an embedding that also scores; counted apart.
        longest: learned positions; counted apart.

    Raises:
        BadInput: the budget is too small for one layer, or a size is out of range.
        UnknownName: no such law.

    Example:
        >>> small = plan_shape(85_000_000)
        >>> small.depth, small.width, small.heads, small.params
        (23, 552, 8, 84264456)
        >>> small.regime.side, small.least_depth
        ('near', 7)
    """
    who = "plan_shape"
    for name, value, least in (
        ("budget", budget, 1), ("head", head, 1), ("multiple", multiple, 1), ("vocabulary", vocabulary, 0),
        ("longest", longest, 0),
    ):  # fmt: skip
        check_size(who, name, value, least=least)
    if law not in LAWS:
        raise unknown(who, "law", law, LAWS)
    step = lcm(multiple, check_size(who, "heads", heads)) if heads is not None else multiple
    chosen, found = LAWS[law], None
    largest = max(round(chosen.depth(budget)), 1) + 1
    # Bands follow each other, more layers with more weights, so that the first fit is the largest.
    for layers in range(largest, 0, -1) if depth is None else [check_size(who, "depth", depth)]:
        low, high = _band(chosen, layers) if depth is None else (1, budget)
        width = _widest(layers, budget, high, step)
        while width >= low and not (heads or heads_of(width, head)):
            width -= step
        if width >= low:
            found = layers, width
            break
    if found is None:
        layers, width = _least(chosen, depth, step, None if heads else head)
        raise BadInput(
            f"{who}: a budget of {budget:,} weights is too small for {layers} layer{'s' * (layers > 1)}: "
            f"width {width}, the least, takes {count_params(layers, width):,}"
        )
    layers, width = found
    regime = shape_regime(layers, width)
    return Sizing(
        budget,
        layers,
        width,
        heads or heads_of(width, head),
        regime.params,
        (vocabulary + longest) * width,
        law if depth is None else "given",
        ceil(THRESHOLD.depth(regime.params)),
        regime,
    )


def shape_regime(depth: int, width: int) -> Regime:
    """Where a shape stands against the fitted law and against theory.

    Args:
        depth: layers.
        width: features of a point.

    Raises:
        BadInput: a size is out of range.

    Example:
        >>> found = shape_regime(96, 12288)
        >>> found.side, round(found.law_depth, 1), found.efficient, round(found.layer_gain)
        ('deeper', 80.5, False, 12288)
    """
    params, plain = count_params(depth, width), BLOCK * depth * width**2
    law, (low, high) = LEVINE2020.depth(plain), LEVINE2020.depth_range(plain)
    side = "shallower" if depth < low - 0.5 else "deeper" if depth > max(high + 0.5, 1) else "near"
    rank, next_rank = (log_separation_rank(layers, width) for layers in (depth, depth + 1))
    threshold = depth_threshold(width)
    return Regime(
        depth,
        width,
        params,
        law,
        (low, high),
        side,
        threshold,
        depth < threshold,
        rank,
        next_rank - rank,
        (*_warnings(depth, params, law), RANGE, *EVIDENCE),
    )


def shape_cost(
    depth: int,
    width: int,
    *,
    points: int = 1024,
    vocabulary: int = 0,
    flops: float = 989e12,
    bandwidth: float = 4.8e12,
) -> ShapeCost:
    """What a shape costs: operations, memory and time, counted and not measured.

    Args:
        depth: layers.
        width: of the model.
        points: tokens of a context, of which a causal one sees half on average.
        vocabulary: tokens that are scored.
        flops: operations a second of a device at its peak; those of an H200 in bfloat16 by default.
        bandwidth: bytes a second of its memory.

    Raises:
        BadInput: a size or a rate is out of range.

    Example:
        >>> f"{shape_cost(12, 768).train_flops:.2e}"
        '5.66e+08'
    """
    check_size("shape_cost", "points", points)
    check_size("shape_cost", "vocabulary", vocabulary, least=0)
    if not (flops > 0 and bandwidth > 0):
        raise BadInput(f"shape_cost: flops is {flops}, bandwidth {bandwidth}; expected numbers above 0")
    params, spread = count_params(depth, width), depth * width
    scored = vocabulary * width
    forward = 2.0 * (BLOCK * depth * width**2 + scored) + 2.0 * spread * (points + 1)
    return ShapeCost(
        forward,
        3 * forward,
        2 * (params + scored),
        ADAM * (params + scored),
        KEPT * spread,
        4 * spread,
        depth,
        3 * forward / flops + MOVED * spread / bandwidth,
    )


def heads_of(width: int, head: int = 64) -> int:
    """How many heads of about `head` features a width splits into; 0 where none fits, 1 where it is narrow.

    Example:
        >>> heads_of(552), heads_of(8 * 11), heads_of(32)
        (8, 0, 1)
    """
    low, high = (share * head for share in HEAD)
    if width < low:
        return 1
    fits = [count for count in range(ceil(width / high), int(width / low) + 1) if width % count == 0]
    return min(fits, key=lambda count: abs(log(width / count / head)), default=0)


def _depth(params: float, intercept: float, slope: float) -> float:
    """L with 12 L e^(2a + 2bL) = N: with u = 2bL that is u + ln u = z, by Newton's method."""
    if not (isfinite(params) and params > 0):
        raise BadInput(f"ShapeLaw: params is {params!r}, expected a number above 0")
    z = log(params / BLOCK) - 2 * intercept + log(2 * slope)
    u = z - log(z) if z > 2 else exp(min(z, 0.0))
    for _ in range(30):
        u = u * (1 + z - log(u)) / (1 + u)
    return u / (2 * slope)


def _band(law: ShapeLaw, depth: int) -> tuple[int, int]:
    """The least and the largest width of networks whose depth is the law's, rounded; all narrow ones at 1."""
    low, high = (ceil(sqrt(law.params(depth + half) / (BLOCK * depth))) for half in (-0.5, 0.5))
    return 1 if depth == 1 else low, high - 1


def _widest(depth: int, budget: int, most: int, step: int) -> int:
    """The largest multiple of `step` up to `most` whose network the budget holds; 0 where there is none."""
    linear = 13 * depth + 2
    width = (isqrt(linear**2 + 4 * BLOCK * depth * budget) - linear) // (2 * BLOCK * depth)
    return min(width, most) // step * step


def _least(law: ShapeLaw, depth: int | None, step: int, head: int | None) -> tuple[int, int]:
    """The smallest shape that can be planned."""
    bands = ((layers, *_band(law, layers)) for layers in count(1)) if depth is None else [(depth, 1, maxsize)]
    return next(
        (layers, width)
        for layers, low, high in bands
        for width in range(-(-low // step) * step, high + 1, step)
        if head is None or heads_of(width, head)
    )


def _warnings(depth: int, params: int, law: float) -> Iterator[str]:
    low, high = (LEVINE2020.params(layers) for layers in LEVINE2020.depths)
    if not low <= params <= high:
        yield (
            f"{params:,} weights are outside of what the law was fitted on, {low / 1e6:.1f} million to "
            f"{high / 1e9:.1f} billion: its {law:.1f} layers are an extrapolation."
        )
    if depth < THRESHOLD.depth(params):
        yield (
            f"The theory threshold at this size, {THRESHOLD.depth(params):.1f} layers, is above {depth}; "
            "small networks that are trained for a short time may still do best there."
        )
