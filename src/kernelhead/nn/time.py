"""Learned features of time, and attention that sees them: two kernels joined, added or multiplied."""

from math import e, inf, log, tau
from typing import cast

import torch
from torch import Tensor, nn

from kernelhead.errors import BadInput, ShapeError, unknown
from kernelhead.kernels.time import (
    AbstractTimeKernel,
    BochnerKernel,
    MercerKernel,
    bochner_features,
    log_lags,
    mercer_features,
    product_features,
    published_bochner,
    published_mercer,
    quantile_frequencies,
)
from kernelhead.nn.base import AbstractKernelAttention, Attended
from kernelhead.nn.heads import merge_heads
from kernelhead.nn.softmax import SoftmaxAttention, project, refuse_causal_context, without_padding
from kernelhead.ops.softmax import softmax_attention, softmax_pattern
from kernelhead.pattern import Dense
from kernelhead.rng import generator
from kernelhead.shapes import check_mask, check_size, zeroed
from kernelhead.units import seconds_in

KINDS = ("bochner", "mercer", "scalar", "position", "none")
SPECTRA = ("free", "normal", "inverse_cdf", "fixed")
PRESETS = ("published",)
MIXES = ("concatenate", "add", "multiply")
KNOTS = 8  # of a learned inverse distribution function


class TimeEncoding(nn.Module):
    r"""Features of times whose inner products are a learned kernel; exact at any span, zero at padding.

    - "bochner": $[\cos \omega_i t, \sin \omega_i t]$, a stationary kernel, by its spectrum:
      "free" frequencies; "normal", $\mu + \sigma z_i$ with learned mean and deviation; "inverse_cdf",
      quantiles of a learned distribution; or "fixed", drawn at random and never trained. What is drawn is
      drawn once, from the seed: the spectrum of a trained layer does not change.
    - "mercer": learned periods with `harmonics` each, and learned non-negative coefficients; with the
      spectrum "fixed" periods stay where they are.
    - "scalar": two learned layers on the one number $\log(1 + t / t_0)$, $t_0$ the shortest period.
    - "position": a learned vector for how many real events come after, time itself unseen.
    - "none": zeros, to compare with.

    The preset "published" is what the released code computes, of which neither is a kernel: sines and
    cosines with frequencies of their own and a scale for "bochner"; one free sum of harmonics a period for
    "mercer".

    Shapes: times (b, n), whole or real numbers in `unit`, in float64 where spans are long; mask (b, n), True
    where real; returns (b, n, width) in the precision of the weights.

    Args:
        width: features; even for "bochner", a multiple of 2 `harmonics` + 1 for "mercer" without preset.
        kind: what the features are.
        spectrum: of "bochner" and "mercer".
        periods: the shortest and the longest at the start, evenly spaced by their logarithms between.
            In the preset they are divided by 2 pi: what a radian takes, as released.
        harmonics: of a period of "mercer".
        longest: most events, for "position".
        unit: of times and periods.
        preset: "published", or None.
        seed: of what is drawn.

    Raises:
        BadInput: a size is out of range, the width does not split, or the spectrum does not go with the kind.
        UnknownName: no such kind, spectrum, preset or unit.

    Example:
        >>> encoding = TimeEncoding(8, kind="bochner")
        >>> encoding(torch.tensor([[0.0, 1.5]])).shape
        torch.Size([1, 2, 8])
        >>> encoding.kernel.gram(torch.zeros(1), torch.zeros(1)).item()
        4.0
    """

    base: Tensor
    nothing: Tensor

    def __init__(
        self,
        width: int,
        *,
        kind: str = "bochner",
        spectrum: str = "free",
        periods: tuple[float, float] = (0.1, 100.0),
        harmonics: int = 5,
        longest: int = 0,
        unit: str = "days",
        preset: str | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__()
        self.width = check_size("TimeEncoding", "width", width)
        self.harmonics = check_size("TimeEncoding", "harmonics", harmonics)
        self.kind, self.spectrum, self.unit, self.preset = kind, spectrum, unit, preset
        self.periods, self.longest = periods, longest
        seconds_in("TimeEncoding", unit)
        _check_options(self)
        if kind == "bochner":
            self._make_bochner(seed)
        elif kind == "mercer":
            self._make_mercer()
        elif kind == "scalar":
            self.layers = nn.Sequential(nn.Linear(1, width), nn.GELU(), nn.Linear(width, width))
        elif kind == "position":
            check_size("TimeEncoding", "longest", longest)
            self.table = nn.Parameter(torch.empty(longest, width).uniform_(-0.02, 0.02))
        else:
            self.register_buffer("nothing", torch.zeros(width))

    def _make_bochner(self, seed: int) -> None:
        count = self.width // 2
        if self.preset == "published":
            self.sine, self.cosine = (nn.Parameter(_ladder(*self.periods, count, base=10)) for _ in range(2))
            self.scale = nn.Parameter(torch.ones(self.width))
            return
        logs = log(tau) - _ladder(*self.periods, count)  # of frequencies, the highest first
        draws = generator(seed)
        if self.spectrum == "free":
            self.log_frequency = nn.Parameter(logs)
        elif self.spectrum == "normal":
            self.register_buffer("base", torch.randn(count, generator=draws))
            self.mean, self.log_deviation = nn.Parameter(torch.zeros(())), nn.Parameter(logs.mean())
        elif self.spectrum == "inverse_cdf":
            self.register_buffer("base", (torch.arange(count) + 0.5) / count)
            rise = (log(self.periods[1]) - log(self.periods[0])) / KNOTS
            self.lowest = nn.Parameter(logs.min().clone())
            # What softplus takes to `rise`; a spectrum of one frequency still has steps.
            self.steps = nn.Parameter(torch.full((KNOTS,), rise).clamp_min(1e-6).expm1().log())
        else:
            high, low = self._ends(count)
            drawn = torch.rand(count, generator=draws) * (high - low) + low
            self.register_buffer("log_frequency", drawn)

    def _ends(self, count: int) -> tuple[float, float]:
        """Highest and lowest logarithm of a frequency, known also where a model is made without memory."""
        shortest, longest = map(log, self.periods)
        ends = log(tau) - torch.linspace(shortest, longest, min(count, 2), device="cpu")
        return float(ends[0]), float(ends[-1])

    def _make_mercer(self) -> None:
        if self.preset == "published":
            self.exponent = nn.Parameter(_ladder(*self.periods, self.width, base=10))
            self.weight = nn.Parameter(nn.init.xavier_uniform_(torch.empty(self.width, 2 * self.harmonics)))
            self.bias = nn.Parameter(torch.zeros(self.width))
            return
        count = self.width // (2 * self.harmonics + 1)
        logs = _ladder(*self.periods, count)
        if self.spectrum == "free":
            self.log_period = nn.Parameter(logs)
        else:
            self.register_buffer("log_period", logs)
        self.amplitude = nn.Parameter(torch.ones(count, self.harmonics + 1))

    @property
    def frequencies(self) -> Tensor:
        """The spectrum of a "bochner" without preset, (width / 2,) radians a unit."""
        if self.spectrum == "normal":
            return self.mean + self.log_deviation.exp() * self.base
        if self.spectrum == "inverse_cdf":
            return quantile_frequencies(self.base, self.lowest, self.steps)
        return self.log_frequency.exp()

    @property
    def kernel(self) -> AbstractTimeKernel:
        """The kernel of times that inner products of the features are, as learned so far.

        Raises:
            BadInput: they are no kernel of times.
        """
        if self.preset is None and self.kind == "bochner":
            frequencies = self.frequencies.detach()
            return BochnerKernel(frequencies, torch.ones_like(frequencies), self.unit)
        if self.preset is None and self.kind == "mercer":
            return MercerKernel(self.log_period.detach().exp(), self.amplitude.detach().square(), self.unit)
        what = self.kind if self.preset is None else f"{self.preset} {self.kind}"
        raise BadInput(f"TimeEncoding: inner products of {what} features are no kernel of two times")

    def forward(self, times: Tensor, *, mask: Tensor | None = None) -> Tensor:
        """Features of times."""
        if times.dim() != 2 or times.dtype in (torch.bool, torch.complex64, torch.complex128):
            raise BadInput(
                f"TimeEncoding: `times` is {times.dtype} of shape {tuple(times.shape)}, "
                "expected numbers (b, n)"
            )
        check_mask("TimeEncoding", mask, times.unsqueeze(-1))
        if mask is not None:
            # Nothing in the padding, not even NaN, may reach a product or its gradient.
            times = times.masked_fill(~mask, 0)
        return zeroed(self._features(times, mask), mask)

    def _features(self, times: Tensor, mask: Tensor | None) -> Tensor:
        if self.kind == "bochner":
            if self.preset == "published":
                return published_bochner(times, self.sine, self.cosine, self.scale)
            frequencies = self.frequencies
            return bochner_features(times, frequencies, torch.ones_like(frequencies))
        if self.kind == "mercer":
            if self.preset == "published":
                return published_mercer(times, self.exponent, self.weight, self.bias)
            return mercer_features(times, self.log_period.exp(), self.amplitude)
        if self.kind == "scalar":
            kind = next(self.layers.parameters()).dtype
            return self.layers(log_lags(times, self.periods[0]).to(kind).unsqueeze(-1))
        if self.kind == "none":
            return self.nothing.expand(*times.shape, self.width)
        if times.shape[1] > self.longest:
            raise BadInput(
                f"TimeEncoding: {times.shape[1]} events, but positions are for {self.longest} at most"
            )
        real = torch.ones_like(times, dtype=torch.int64) if mask is None else mask.long()
        return nn.functional.embedding((real.sum(1, keepdim=True) - real.cumsum(1)).clamp_min(0), self.table)

    def extra_repr(self) -> str:
        """The options that parameters do not show."""
        how = self.spectrum if self.preset is None else self.preset
        return f"{self.width}, kind={self.kind}, spectrum={how}, unit={self.unit}"


class TimeAwareAttention(AbstractKernelAttention):
    r"""An attention whose kernel sees the times of its points, by a stated mix of two kernels.

    - "concatenate", as published: the attention runs on [event, time], so that its logit is a sum of four
      bilinear forms, event with event, event with time, and so on. Any attention will do; of what comes
      out the event's part is kept.
    - "add": $q^\top k / \sqrt d + a_h\,\kappa(s, t)$ in the logit, $\kappa$ the inner product of encodings
      and $a_h > 0$ learned; the exponentials of the two kernels multiply.
    - "multiply": $q^\top k / \sqrt d \cdot a_h\,\kappa(s, t)$ in the logit, the kernel of a tensor product.

    The last two change a logit, and so are for softmax attention.

    Shapes: x (b, n, c), one point a row; times (b, n); mask (b, n), True where real; context (b, m, c) with
    context_mask and context_times (b, m); returns (b, n, c), zero at padded points.

    Args:
        attention: of width c + time.width for "concatenate", of width c for the others.
        time: encoding of the times.
        mix: how the two kernels meet.

    Raises:
        BadInput: the attention is not wide enough, changes no logit, or is causal and would see positions.
        UnknownName: there is no such mix.

    Example:
        >>> layer = TimeAwareAttention(SoftmaxAttention(12, heads=2), time=TimeEncoding(4))
        >>> layer(torch.zeros(1, 3, 8), times=torch.tensor([[0.0, 0.5, 7.0]])).shape
        torch.Size([1, 3, 8])
    """

    def __init__(
        self, attention: AbstractKernelAttention, *, time: TimeEncoding, mix: str = "concatenate"
    ) -> None:
        super().__init__()
        if mix not in MIXES:
            raise unknown("TimeAwareAttention", "mix", mix, MIXES)
        self.width = attention.width - time.width if mix == "concatenate" else attention.width
        if self.width < 1:
            raise BadInput(
                f"TimeAwareAttention: the attention is {attention.width} wide and the encoding {time.width}, "
                "expected more of the attention"
            )
        if mix != "concatenate" and not isinstance(attention, SoftmaxAttention):
            raise BadInput(
                f"TimeAwareAttention: mix {mix!r} changes the logit of a softmax, got "
                f"{type(attention).__name__}; expected SoftmaxAttention, or mix 'concatenate'"
            )
        if attention.causal and time.kind == "position":
            raise BadInput(
                "TimeAwareAttention: positions are counted from the last event, which a causal attention "
                "must not know of; expected another kind of encoding"
            )
        self.heads, self.causal, self.mix = attention.heads, attention.causal, mix
        self.attention, self.time = attention, time
        if mix != "concatenate":
            # At the start the kernel of time is about 1 at lag zero.
            self.log_strength = nn.Parameter(torch.full((attention.heads,), -log(max(time.width / 2, 1))))

    def forward(
        self,
        x: Tensor,
        *,
        mask: Tensor | None = None,
        context: Tensor | None = None,
        context_mask: Tensor | None = None,
        times: Tensor | None = None,
        context_times: Tensor | None = None,
    ) -> Tensor:
        """Attend to `x`, or from `x` to `context`; points without times are one unit apart."""
        if context is None and context_times is not None:
            raise BadInput("TimeAwareAttention: `context_times` was given without `context`")
        x = self._with_times(x, mask, times, ("x", "mask", "times"))
        if context is not None:
            names = ("context", "context_mask", "context_times")
            context = self._with_times(context, context_mask, context_times, names)
        return super().forward(x, mask=mask, context=context, context_mask=context_mask)

    def attend(
        self,
        x: Tensor,
        *,
        mask: Tensor | None,
        context: Tensor | None,
        context_mask: Tensor | None,
        keep: str,
    ) -> Attended:
        """Attend to checked points (b, n, c + time.width), each with the encoding of its time."""
        if self.mix == "concatenate":
            made = self.attention.attend(x, mask=mask, context=context, context_mask=context_mask, keep=keep)
            return Attended(made.output[..., : self.width], made.moments, made.pattern, made.kernel)
        layer, causal = self._softmax, self.causal
        refuse_causal_context(layer, causal, context)
        x, times = x.split([self.width, self.time.width], dim=-1)
        other = times
        if context is not None:
            context, other = context.split([self.width, self.time.width], dim=-1)
        query, key, value, real = project(layer, x, mask, context, context_mask)
        query, key = self._mixed(query, key, times, other)
        dropout = layer.dropout if self.training else 0.0
        mixed = softmax_attention(query, key, value, mask=real, causal=causal, dropout=dropout, scale=1.0)
        pattern = None
        if keep == "patterns":
            entries = softmax_pattern(query, key, mask=real, causal=causal, scale=1.0)
            pattern = without_padding(Dense(entries), mask)
        return Attended(layer.out(merge_heads(mixed)), pattern=pattern)

    def _mixed(self, query: Tensor, key: Tensor, times: Tensor, other: Tensor) -> tuple[Tensor, Tensor]:
        """Queries and keys whose inner products are the logits.

        Shapes: query (b, h, n, d), key (b, h, m, d), times (b, n, p), other (b, m, p).
        """
        query = query * query.shape[-1] ** -0.5
        strong = self.log_strength.exp()[:, None, None] * times.unsqueeze(1)  # (b, h, n, p)
        weak = other.unsqueeze(1).expand(-1, self.heads, -1, -1)
        strong, weak = strong.to(query.dtype), weak.to(key.dtype)
        if self.mix == "add":
            return torch.cat([query, strong], dim=-1), torch.cat([key, weak], dim=-1)
        return product_features(query, strong), product_features(key, weak)

    def _with_times(
        self, points: Tensor, mask: Tensor | None, times: Tensor | None, names: tuple[str, str, str]
    ) -> Tensor:
        """Points (b, n, c), checked, with the encoding of their times beside them."""
        super()._check("TimeAwareAttention", points, mask, names[0], names[1])
        if times is None:
            times = torch.arange(points.shape[1], device=points.device).expand(points.shape[:2])
        if times.shape != points.shape[:2]:
            raise ShapeError(
                f"TimeAwareAttention: `{names[2]}` has shape {tuple(times.shape)}, expected "
                f"{tuple(points.shape[:2])}, one entry for each point of {tuple(points.shape)}"
            )
        return torch.cat([points, self.time(times, mask=mask).to(points.dtype)], dim=-1)

    def _check(self, who: str, points: Tensor, mask: Tensor | None, name: str, mask_name: str) -> None:
        """Points are checked before their times join them."""

    @property
    def _softmax(self) -> SoftmaxAttention:
        return cast(SoftmaxAttention, self.attention)


def _ladder(shortest: float, longest: float, count: int, *, base: float = e) -> Tensor:
    """Logarithms from the shortest to the longest period in equal steps, (count,)."""
    return torch.linspace(log(shortest, base), log(longest, base), count)


def width_share(kind: str, *, preset: str | None = None, harmonics: int = 5) -> int:
    """What the width of an encoding is a multiple of.

    Example:
        >>> width_share("bochner"), width_share("mercer", harmonics=3)
        (2, 7)
    """
    return {"bochner": 2, "mercer": 1 if preset else 2 * harmonics + 1}.get(kind, 1)


def _check_options(made: TimeEncoding) -> None:
    who, kind = "TimeEncoding", made.kind
    for what, name, known in (
        ("kind", kind, KINDS),
        ("spectrum", made.spectrum, SPECTRA),
        ("preset", made.preset or PRESETS[0], PRESETS),
    ):
        if name not in known:
            raise unknown(who, what, name, known)
    shortest, longest = made.periods
    if not 0 < shortest <= longest < inf:
        raise BadInput(f"{who}: periods are {made.periods}, expected the shortest and the longest, above 0")
    fits = {"bochner": SPECTRA, "mercer": ("free", "fixed")}.get(kind, ("free",))
    if made.preset is not None:
        fits = ("free",)
        if kind not in ("bochner", "mercer"):
            raise BadInput(f"{who}: preset {made.preset!r} is of bochner and mercer, got kind {kind!r}")
    if made.spectrum not in fits:
        how = kind if made.preset is None else f"{made.preset} {kind}"
        raise BadInput(f"{who}: spectrum {made.spectrum!r} is none of a {how}: {', '.join(fits)}")
    share = width_share(kind, preset=made.preset, harmonics=made.harmonics)
    if made.width % share:
        raise BadInput(f"{who}: width is {made.width}, expected a multiple of {share} for {kind}")
