"""How near the values of a softmax attention are to those that make it a kernel PCA of its keys."""

from dataclasses import asdict, dataclass
from math import isfinite, isnan, log, nan
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from kernelhead.decomposition import centred_gram, log_norms
from kernelhead.errors import BadInput
from kernelhead.nn import (
    AbstractKernelAttention,
    RPCAttention,
    ScaledAttention,
    SoftmaxAttention,
    SymmetricAttention,
    evaluating,
    split_heads,
)
from kernelhead.nn.hosts import Sides as HostSides
from kernelhead.nn.hosts import find_sites, reading
from kernelhead.nn.hosts.watching import asked
from kernelhead.ops import softmax_attention
from kernelhead.ops.eager.rpc import bounds, pursue, update
from kernelhead.rng import generator
from kernelhead.shapes import check_axes, check_mask, check_size, zeroed

READABLE = (SoftmaxAttention, SymmetricAttention, RPCAttention, ScaledAttention)
HOLDS, IN_PART, FAILS, OPEN = "holds", "holds in part", "does not hold", "cannot be told"
ENOUGH = 0.95  # of the way from chance to perfect, in every instrument and head: holds
LITTLE = 0.25  # of that way, in every instrument: does not hold
ROOM = 1e-3  # between chance and perfect, below which nothing can be told
BROKEN = 0.01  # share of queries against Bessel's inequality that rounding may explain
PERFECT = {"explained": 1.0, "cosine_mean": 1.0, "span_residual": 0.0}
PAIRED = 64  # points between which the gamma test takes all pairs


@dataclass(frozen=True)
class HeadAlignment:
    r"""What the instruments read in one head, mean over cases; NaN where they can say nothing.

    With $g_j = \sum_i e^{k_j^\top k_i / \sqrt d}$, the centred Gram matrix $\tilde K$ of the keys and
    $\hat A$ the centred columns of $g_j v_j$, each of norm one.

    Attributes:
        bessel_rate: share of queries with $\|h\|^2 > \|\phi(q)\|^2$, which no projection has.
        log_ratio: mean of $\log \|h\|^2 / \|\phi(q)\|^2$.
        reconstruction: mean of $\|\phi(q)\|^2 - \|h\|^2$, signed; negative for no projection.
        feature_norm: mean of $\|\phi(q)\|^2$.
        output_norm: mean of $\|h\|^2$.
        column_residual: $\|\tilde K a - \rho a\| / |\rho|$, $\rho = a^\top \tilde K a$, median over columns.
        span_residual: $\|\tilde K Q - Q Q^\top \tilde K Q\| / \|\tilde K Q\|$, Q a basis of the columns.
        cosine_mean: mean cosine between the span of the columns and that of the leading eigenvectors.
        cosine_least: the smallest of these cosines.
        explained: $\mathrm{tr}(Q^\top \tilde K Q)$ over the sum of as many leading eigenvalues.
        cka: linear CKA of the columns and the leading eigenvectors; 1 up to a rotation.
        gamma_relative: mean of $|\gamma_i - \gamma_j| / \max$ over pairs, $\gamma = \tilde K a / (n a)$.
        gamma_absolute: mean of $|\gamma_i - \gamma_j|$, small for any columns whatever.
    """

    bessel_rate: float
    log_ratio: float
    reconstruction: float
    feature_norm: float
    output_norm: float
    column_residual: float
    span_residual: float
    cosine_mean: float
    cosine_least: float
    explained: float
    cka: float
    gamma_relative: float
    gamma_absolute: float


@dataclass(frozen=True)
class Alignment:
    """The heads of one attention beside values that have nothing to do with kernel PCA.

    Attributes:
        heads: what was read in each head.
        baselines: the same for "permuted" values, whose rows stand at other points; for "gaussian"
            ones; and, where the points are known, for "redrawn" ones, a random layer of the same points.
    """

    heads: tuple[HeadAlignment, ...]
    baselines: dict[str, tuple[HeadAlignment, ...]]

    def chance(self, figure: str) -> list[float]:
        """Of each head the baseline nearest to kernel PCA, in one of the figures that decide."""
        nearest = max if PERFECT[figure] else min
        rows = zip(*self.baselines.values(), strict=True)
        return [nearest(getattr(each, figure) for each in row) for row in rows]

    @property
    def verdict(self) -> str:
        """Whether the values are those of kernel PCA, up to an invertible map of their columns."""
        chance = {figure: self.chance(figure) for figure in PERFECT}
        gaps = [
            {
                name: (getattr(head, name) - chance[name][i], perfect - chance[name][i])
                for name, perfect in PERFECT.items()
            }
            for i, head in enumerate(self.heads)
        ]
        gaps = [head for head in gaps if all(abs(room) >= ROOM for _, room in head.values())]
        if not gaps:
            return OPEN
        if all(gained / room >= ENOUGH for head in gaps for gained, room in head.values()):
            return HOLDS
        pooled = [
            sum(head[name][0] for head in gaps) / sum(head[name][1] for head in gaps) for name in PERFECT
        ]
        return FAILS if max(pooled) < LITTLE else IN_PART

    @property
    def sentence(self) -> str:
        """The verdict with the figures behind it, mean over heads."""
        broken = _mean([head.bessel_rate for head in self.heads])
        words, bessel = self.verdict, f"Bessel's inequality fails for {broken:.0%} of queries"
        shares = _mean([head.explained for head in self.heads]), _mean(self.chance("explained"))
        cosines = _mean([head.cosine_mean for head in self.heads]), _mean(self.chance("cosine_mean"))
        if isnan(shares[0]):
            return f"{words}: no more points than value columns, or keys beyond float64; {bessel}"
        if words == HOLDS and broken > BROKEN:
            words += " up to a map of the value columns"
        return (
            f"{words}: explained {shares[0]:.3f}, by chance {shares[1]:.3f}; "
            f"cosine {cosines[0]:.3f}, by chance {cosines[1]:.3f}; {bessel}"
        )


class Sides(NamedTuple):
    """What one attention attended with.

    Shapes: query, key, value (b, h, n, d); points (b, n, c), its input where that is known; mask (b, n), True
    where real.
    """

    kind: str
    query: Tensor
    key: Tensor
    value: Tensor
    points: Tensor | None
    mask: Tensor | None


class Read(NamedTuple):
    """The attentions of a model by path: the sides of those that can be read, the reason for others."""

    sides: dict[str, Sides]
    skipped: dict[str, str]


def alignment(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    mask: Tensor | None = None,
    points: Tensor | None = None,
    draws: int = 8,
    seed: int = 0,
) -> Alignment:
    r"""Measure whether values are, up to an invertible map of columns, those of kernel PCA of the keys.

    Attention on $v_j = a_j / g_j$, with a the leading eigenvectors of the centred Gram matrix of the
    keys under $e^{x^\top y / \sqrt d} / (g(x) g(y))$, is a projection on kernel principal components. An
    output projection absorbs any invertible map of the columns, so their span decides; Bessel's
    inequality, $\|h\| \le \|\phi(q)\|$, concerns the columns themselves and is only reported.

    In a case of no more than e + 1 points the values span everything, so the figures on spans leave
    it out; a case of fewer than three points is left out of all. Costs O(n^3) a head and case, in float64.

    Shapes: query, key (b, h, n, d), value (b, h, n, e), mask (b, n), True where real, points (b, n, c).

    Args:
        points: what the values are a linear layer of, for the "redrawn" baseline.
        draws: of each baseline, of which the mean is taken.
        seed: of the draws.

    Raises:
        ShapeError: axes that must agree do not.
        BadInput: the mask is not boolean, `draws` is below 1, no case has three points, or a
            number is not finite.

    Example:
        >>> from kernelhead.decomposition import kpca_values
        >>> key, other = torch.randn(2, 1, 2, 20, 8, generator=generator(0))
        >>> alignment(key, key, kpca_values(key, 4)).verdict
        'holds'
        >>> alignment(key, key, other[..., :4]).verdict
        'does not hold'
    """
    who = "alignment"
    axes = {"query": (query, "b h n d"), "key": (key, "b h n d"), "value": (value, "b h n e")}
    check_axes(who, **axes, **({} if points is None else {"points": (points, "b n c")}))
    check_mask(who, mask, key[:, 0])
    check_size(who, "draws", draws)
    kept = torch.ones(key[:, 0, :, 0].shape, dtype=torch.bool) if mask is None else mask.cpu()
    read = []
    for case, real in enumerate(kept):
        if real.sum() < 3:
            continue
        sides = [_chosen(side[case], real) for side in (query, key, value)]
        inputs = None if points is None else _chosen(points[case], real)
        if not all(side.isfinite().all() for side in sides):
            raise BadInput(f"{who}: case {case} holds a number that is not finite")
        tried = torch.cat([sides[2][None], *_drawn(sides[2], inputs, draws, seed, case)])  # (t, h, n, e)
        read.append(_figures(sides[0], sides[1], tried))
    if not read:
        raise BadInput(f"{who}: no case has three real points, of {kept.shape[0]} cases")
    found = torch.stack(read).nanmean(0)  # (figures, t, h)
    names = ("permuted", "gaussian", "redrawn")[: (found.shape[1] - 1) // draws]
    parts = [_heads(part.nanmean(1)) for part in found[:, 1:].split(draws, dim=1)]
    return Alignment(_heads(found[:, 0]), dict(zip(names, parts, strict=True)))


def sides_of(model: nn.Module, x: Tensor, mask: Tensor | None = None) -> Read:
    """Queries, keys and values of every softmax attention of a model on a batch, by its own projections.

    Keys are those of the last iteration of a pursuit, values those after scaling: softmax attention
    of the three is what the layer does before its output projection.

    Args:
        model: any module with attentions of kernelhead; called as ``model(x, mask)``.
        x: a batch, as the model takes it.
        mask: (b, n), True where real.

    Raises:
        BadInput: no attention of the model can be read.

    Example:
        >>> from kernelhead.models import SequenceClassifier
        >>> model = SequenceClassifier(2, channels=1, width=8, heads=2, attention="primal+")
        >>> read = sides_of(model, torch.randn(3, 5, 1))
        >>> read.sides["blocks.0.attention"].value.shape, read.skipped
        (torch.Size([3, 2, 5, 4]), {'blocks.1.attention': 'PrimalAttention has no softmax pattern'})
    """
    layers = {p: layer for p, layer in model.named_modules() if isinstance(layer, AbstractKernelAttention)}
    inputs: dict[nn.Module, tuple[Tensor, dict[str, Any]]] = {}

    def keep(layer: nn.Module, given: tuple[Tensor, ...], named: dict[str, Any]) -> None:
        inputs[layer] = given[0], named

    hooks = [layer.register_forward_pre_hook(keep, with_kwargs=True) for layer in layers.values()]
    read = Read({}, {})
    try:
        with evaluating(model), torch.no_grad():
            model(x, mask)
    finally:
        for hook in hooks:
            hook.remove()
    with evaluating(model), torch.no_grad():
        for path, layer in layers.items():
            points, named = inputs.get(layer, (x, None))
            reason = _unreadable(layer, named)
            if reason or named is None:
                read.skipped[path] = reason
            else:
                read.sides[path] = _projected(layer, points, named.get("mask"))
    if not read.sides:
        reasons = "; ".join(f"{path}: {reason}" for path, reason in read.skipped.items())
        raise BadInput(
            f"sides_of: {type(model).__name__} has no softmax attention to read ({reasons or 'no attention'})"
        )
    return read


def host_sides(model: nn.Module, batch: Any) -> Read:
    """Queries, keys and values of every attention of any model that `nn.hosts` can read, on a batch.

    Left out, with a reason, is attention that no kernel PCA of its keys can be: causal, from one
    sequence to another, with a bias or another scale than the root of the head's width.

    Args:
        model: a host; see `find_sites`.
        batch: what it is called with, a tensor, a sequence or a mapping.

    Raises:
        BadInput: no attention of the model can be read so, or it cannot take the batch.

    Example:
        >>> layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        >>> host_sides(layer, torch.randn(3, 5, 8)).sides["self_attn"].key.shape
        torch.Size([3, 2, 5, 4])
    """
    read, sites, inputs = Read({}, {}), {site.path: site for site in find_sites(model)}, {}

    def keep(module: nn.Module, given: tuple[Any, ...], named: dict[str, Any]) -> None:
        inputs[module] = next((each for each in (*given, *named.values()) if isinstance(each, Tensor)), None)

    hooks = [site.module.register_forward_pre_hook(keep, with_kwargs=True) for site in sites.values()]
    try:
        with evaluating(model), torch.no_grad(), reading(model) as seen:
            asked("host_sides", model, batch)
    finally:
        for hook in hooks:
            hook.remove()
    for path, calls in seen.items():
        reason = _no_kernel_pca(calls[-1]) if calls else "it was not called"
        if reason is not None:
            read.skipped[path] = reason
            continue
        call, site = calls[-1], sites[path]
        points = _as_points(inputs.get(site.module), call, getattr(site.module, "batch_first", True))
        read.sides[path] = Sides(site.kind, call.query, call.key, call.value, points, call.mask)
    if not read.sides:
        reasons = "; ".join(f"{path}: {reason}" for path, reason in read.skipped.items())
        raise BadInput(f"host_sides: {type(model).__name__} has no such attention ({reasons or 'none'})")
    return read


def _as_points(given: Tensor | None, call: HostSides, batch_first: bool) -> Tensor | None:
    """What a module was called with as (b, n, c), where it is that."""
    if given is None or given.is_nested or given.dim() != 3:
        return None
    given = given if batch_first else given.transpose(0, 1)
    fits = given.shape[:2] == (call.query.shape[0], call.query.shape[2])
    return given if fits and given.is_floating_point() else None


def _no_kernel_pca(call: HostSides) -> str | None:
    if call.causal:
        return "it is causal"
    if call.query.shape[-2] != call.key.shape[-2]:
        return "it attends to another sequence"
    if call.bias is not None:
        return "it adds a bias to the logits"
    if abs(call.scale * call.key.shape[-1] ** 0.5 - 1) > 1e-6:
        return f"its logits have the scale {call.scale:.4g}"
    return None


def kpca_record(
    read: Read, found: dict[str, Alignment], *, cases: int, length: int, seed: int
) -> dict[str, Any]:
    """What `alignment` found in the layers of a model as a JSON record; null where nothing finite was found.

    Args:
        read: what was read of the model.
        found: the alignment of each of its layers, by path.
        cases: from how many cases.
        length: points of the longest of them.
        seed: of the baselines.

    Example:
        >>> from kernelhead.models import SequenceClassifier
        >>> model = SequenceClassifier(2, channels=1, width=8, heads=2, depth=1, attention="softmax")
        >>> read = sides_of(model, torch.randn(3, 9, 1))
        >>> found = {path: alignment(s.query, s.key, s.value) for path, s in read.sides.items()}
        >>> list(kpca_record(read, found, cases=3, length=9, seed=0)["layers"][0])
        ['path', 'kind', 'verdict', 'sentence', 'heads', 'baselines']
    """
    layers = [
        {
            "path": path,
            "kind": read.sides[path].kind,
            "verdict": each.verdict,
            "sentence": each.sentence,
            "heads": _plain(each.heads),
            "baselines": {name: _plain(heads) for name, heads in each.baselines.items()},
        }
        for path, each in found.items()
    ]
    return {"layers": layers, "skipped": read.skipped, "cases": cases, "length": length, "seed": seed}


def _unreadable(layer: AbstractKernelAttention, named: dict[str, Any] | None) -> str:
    """Why the reading does not apply to a layer that was called with these options, empty where it does."""
    kind = type(layer).__name__
    if not isinstance(layer, READABLE):
        return f"{kind} has no softmax pattern"
    if getattr(layer, "causal", False):
        return f"{kind} is causal, and no values serve a kernel PCA of every prefix"
    if named is None:
        return f"{kind} was not called"
    return f"{kind} attends to a context" if named.get("context") is not None else ""


def _projected(layer: AbstractKernelAttention, points: Tensor, mask: Tensor | None) -> Sides:
    """What a layer attends with: keys after a pursuit, values after scaling, queries that may be keys."""
    # What stands at padded points, even NaN, must not reach a product.
    points, real = zeroed(points, mask), None if mask is None else mask[:, None]

    def part(name: str) -> Tensor:
        return zeroed(split_heads(getattr(layer, name)(points), layer.heads), real)

    query = part("query") if getattr(layer, "query", None) is not None else None
    key, value = part("key"), part("value")
    if isinstance(layer, RPCAttention):
        key = _pursued(layer, query, key, value, mask)
    if isinstance(layer, ScaledAttention):
        value = layer.scaled(key, value, real)
    return Sides(type(layer).__name__, key if query is None else query, key, value, points, mask)


def _pursued(
    layer: RPCAttention, query: Tensor | None, key: Tensor, value: Tensor, mask: Tensor | None
) -> Tensor:
    """The keys that attend in the last iteration of a pursuit."""
    real = None if mask is None else mask[:, None]

    def attend(at: int, keys: Tensor) -> Tensor:
        if at == layer.pursuit.iterations - 1:
            return keys
        return zeroed(softmax_attention(keys if query is None else query, keys, value, mask=real), real)

    return pursue(key, bounds(key, mask, layer.pursuit), layer.pursuit, attend, update)


def _chosen(side: Tensor, real: Tensor) -> Tensor:
    """The real points (... n d) of one case, in float64 on the CPU."""
    return side.detach().cpu().double()[..., real, :]


def _drawn(value: Tensor, points: Tensor | None, draws: int, seed: int, case: int) -> list[Tensor]:
    """Baseline values, a tensor (draws, h, n, e) for each kind."""
    source = generator(seed, case)
    h, n, e = value.shape
    orders = [torch.randperm(n, generator=source) for _ in range(draws)]
    drawn = [torch.stack([value[:, order] for order in orders])]
    drawn.append(torch.randn(draws, h, n, e, generator=source, dtype=value.dtype))
    if points is not None:
        # As a fresh linear layer: weights and bias uniform within one over the root of the width.
        c = points.shape[-1]
        weight = 2 * torch.rand(draws, h, c + 1, e, generator=source, dtype=value.dtype) - 1
        drawn.append((points @ weight[..., :c, :] + weight[..., c:, :]) / c**0.5)
    return drawn


def _figures(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """All figures of one case, (figures, t, h), for values (t, h, n, e)."""
    n, e = value.shape[-2:]
    logs, gram = log_norms(key), centred_gram(key)  # (h, n) and (h, n, n)
    values, vectors = (part.flip(-1) for part in torch.linalg.eigh(gram))
    # Below this an eigenvalue is rounding: of the Gram matrix before centring, of norm 1 / min g at most.
    floor = torch.finfo(gram.dtype).eps * (n + 2 * logs.amax(-1)) * (-logs.amin(-1)).exp()
    rank = (values[:, :e] > floor.unsqueeze(-1)).sum(-1).clamp_max(n - 1)  # (h,)
    lead = vectors[..., :e] * (torch.arange(min(n, e)) < rank.unsqueeze(-1)).unsqueeze(-2)
    columns = _columns(logs, value)  # (t, h, n, e)
    basis = _basis(columns)
    image, moved = gram @ columns, gram @ basis
    ratio = (columns * image).sum(-2, keepdim=True)
    column_residual = ((image - ratio * columns).norm(dim=-2) / ratio.squeeze(-2).abs()).median(-1).values
    # Values without a span, such as zeros, keep nothing: a residual of one.
    span_residual = (_norm(moved - basis @ (basis.mT @ moved)) / _norm(moved)).nan_to_num(1)
    cosines = torch.linalg.svdvals(lead.mT @ basis).clamp_max(1)  # (t, h, s)
    least = cosines.gather(-1, (rank - 1).clamp_min(0).expand(cosines.shape[:-1]).unsqueeze(-1)).squeeze(-1)
    explained = (basis * moved).sum((-2, -1)) / values[:, : min(e, n - 1)].clamp_min(0).sum(-1)
    cka = (_norm(lead.mT @ columns).square() / (_norm(columns.mT @ columns) * rank.sqrt())).nan_to_num(0)
    spans = torch.stack([span_residual, cosines.sum(-1) / rank, least, explained, cka])
    if n - 1 <= e:
        spans = torch.full_like(spans, nan)
    spans = spans.masked_fill(rank == 0, nan)
    return torch.cat([_norms(query, key, value), column_residual[None], spans, _gammas(columns, image / n)])


def _norms(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """What needs no eigenvector: Bessel rate, log ratio, J and both norms, (5, t, h)."""
    scores = query @ key.mT / key.shape[-1] ** 0.5
    features = query.square().sum(-1) / key.shape[-1] ** 0.5 - 2 * scores.logsumexp(-1)  # (h, n), logs
    outputs = (scores.softmax(-1) @ value).square().sum(-1)  # (t, h, n)
    ratio = outputs.clamp_min(torch.finfo(outputs.dtype).tiny).log() - features
    squares = features.exp().expand_as(outputs)
    # Equality is a projection too, and rounding must not make it a violation.
    parts = ((ratio > log(1 + 1e-6)).double(), ratio, squares - outputs, squares, outputs)
    return torch.stack([part.mean(-1) for part in parts])


def _columns(logs: Tensor, value: Tensor) -> Tensor:
    """Centred columns of g_j v_j of norm one; through logs, since g itself may be beyond all numbers."""
    exponents = logs.unsqueeze(-1) + value.abs().log()
    largest = exponents.amax(-2, keepdim=True).clamp_min(torch.finfo(value.dtype).min)
    columns = (exponents - largest).exp() * value.sign()
    columns = columns - columns.mean(-2, keepdim=True)
    sizes = columns.norm(dim=-2, keepdim=True)
    # The largest entry was one: a column that centring leaves as rounding was constant, and is zero.
    return torch.where(sizes > value.shape[-2] * torch.finfo(value.dtype).eps, columns / sizes, 0)


def _basis(columns: Tensor) -> Tensor:
    """Orthonormal columns of the same span and shape, zero where the span has fewer dimensions."""
    basis, sizes, _ = torch.linalg.svd(columns, full_matrices=False)
    floor = sizes[..., :1] * max(columns.shape[-2:]) * torch.finfo(columns.dtype).eps
    return basis * (sizes > floor).unsqueeze(-2)


def _gammas(columns: Tensor, image: Tensor) -> Tensor:
    """Relative and absolute spread of image over columns, (2, t, h), over pairs of at most 64 points."""
    # One draw at a time: pairs take room.
    return torch.stack([_spreads(*each) for each in zip(columns, image, strict=True)], dim=1)


def _spreads(columns: Tensor, image: Tensor) -> Tensor:
    """`_gammas` of one draw, (2, h)."""
    chosen = torch.linspace(0, columns.shape[-2] - 1, min(PAIRED, columns.shape[-2])).round().long()
    tiny = torch.finfo(columns.dtype).tiny
    column = columns[..., chosen, :]
    seen = column.abs() > 1e-12  # of columns of norm one: no quotient is made of rounding
    gamma = torch.where(seen, image[..., chosen, :] / torch.where(seen, column, 1), nan).mT  # (h, e, n)
    left, right = gamma.unsqueeze(-1), gamma.unsqueeze(-2)
    apart = (left - right).abs()
    relative = apart / torch.maximum(left.abs(), right.abs()).clamp_min(tiny)
    i, j = torch.triu_indices(len(chosen), len(chosen), 1)
    return torch.stack([part[..., i, j].flatten(-2).nanmean(-1) for part in (relative, apart)])


def _norm(matrix: Tensor) -> Tensor:
    return torch.linalg.matrix_norm(matrix)


def _heads(found: Tensor) -> tuple[HeadAlignment, ...]:
    """Figures (figures, h) by name."""
    return tuple(HeadAlignment(*row) for row in found.mT.tolist())


def _plain(heads: tuple[HeadAlignment, ...]) -> list[dict[str, float | None]]:
    return [{name: v if isfinite(v) else None for name, v in asdict(head).items()} for head in heads]


def _mean(numbers: list[float]) -> float:
    return sum(numbers) / len(numbers)
