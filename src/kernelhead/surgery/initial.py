"""Weights for a primal core from the attention it replaces, by least squares on calibration data."""

from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from kernelhead.errors import BadInput
from kernelhead.nn.cores import PrimalCore
from kernelhead.nn.hosts import Sides
from kernelhead.ops.eager.factored import seen_keys
from kernelhead.shapes import check_size, zeroed

TOLERANCE, MOST = 1e-9, 300
RIDGES = (1e-2, 1.0, 10.0)
#: Sets the weights of a core, given a ridge.
Solve = Callable[[float], None]


@dataclass(frozen=True, eq=False)
class Fit:
    """How far a core is from the attention it was fitted to, as a share of that one's output.

    Attributes:
        before: of each head on the calibration sequences with the weights that were there, (h,).
        after: the same with the fitted weights.
        held_out: of the fitted weights on sequences that were held out; None where there were none.
        sequences: how many were fitted to.
        ridge: that was taken.
    """

    before: Tensor
    after: Tensor
    held_out: Tensor | None
    sequences: int
    ridge: float

    def record(self) -> dict[str, float]:
        """Root mean squares over the heads, by name."""
        found = {"before": self.before, "after": self.after, "held_out": self.held_out}
        return {name: float(each.square().mean().sqrt()) for name, each in found.items() if each is not None}


@torch.no_grad()
def fit_primal(
    core: PrimalCore, sides: Sequence[Sides], *, ridge: float | None = None, every: int = 5
) -> Fit:
    r"""Set the weights of a primal core from the host's own kernel on calibration sequences.

    All is solved in float64, by head, to be near the host's outputs $o_i$ at real points.

    - Mix "join": scores are linear in features, the weights' landmark rows times $\phi(q_i)$ and
      $\psi(k_i)$. The map from both to $o_i$ of the least squared error has a rank-s form that is
      nearest to it in outputs, the reduced-rank regression; its factors are the weights and the join.
      Sums of products are held, of a size that does not grow with the data. `root` stays as it is.
    - Mix "pattern": $W = W_e \Lambda W_r^\top$ of full rank is found by conjugate gradients, so that
      $\phi(q_i)^\top W \psi(k_j)$ as a pattern gives the least squared error; its kernel SVD in the
      metric of the outputs, cut to s components, gives the weights of both sides.

    Components above what a map can have keep their weights, and begin with nothing to say. A head that would
    not come nearer keeps its weights.

    Args:
        core: changed in place.
        sides: what the host's core got, from `reading`.
        ridge: of the least squares, as a share of the mean square of features; if None, that one of
            `RIDGES` with the least error on held-out sequences, the first where none are.
        every: one in so many sequences is held out; 0 for none.

    Raises:
        BadInput: there are no sequences, they hold NaN, do not fit the core, or an option is out of range.

    Example:
        >>> from kernelhead.nn import PrimalCore, Sides
        >>> q, k, v = torch.randn(3, 8, 2, 9, 4, generator=torch.Generator().manual_seed(0))
        >>> fit = fit_primal(PrimalCore(2, 4, rank=4), [Sides(q, k, v, None, False, 0.5)])
        >>> bool((fit.after < fit.before).all()), fit.sequences
        (True, 7)
    """
    check_size("fit_primal", "every", every, least=0)
    if ridge is not None and not 0 <= ridge < float("inf"):
        raise BadInput(f"fit_primal: ridge is {ridge!r}, expected a number from 0 on")
    fitted, held = _parted(sides, every)
    if not fitted:
        raise BadInput("fit_primal: there is no calibration sequence")
    if not any(each.mask is None or bool(each.mask.any()) for each in fitted):
        raise BadInput("fit_primal: no calibration sequence has a point that is not hidden")
    wide = deepcopy(core).double()
    before = _errors(wide, fitted)
    if not bool(before.isfinite().all()):
        raise BadInput("fit_primal: the calibration sequences hold NaN or infinity")
    solve = (_joined if core.mix == "join" else _patterned)(wide, fitted)
    best, held_out = RIDGES[0] if ridge is None else ridge, None
    if held:
        found = {}
        for each in RIDGES if ridge is None else [ridge]:
            solve(each)
            found[each] = _errors(wide, held)
        best = min(found, key=lambda each: float(found[each].square().mean()))
        held_out = found[best]
    solve(best)
    after = _errors(wide, fitted)
    worse = ~(after < before)
    if bool(worse.any()):
        for name, weight in wide.named_parameters():
            weight[worse] = core.get_parameter(name)[worse].double()
        after, held_out = _errors(wide, fitted), _errors(wide, held) if held else None
    core.load_state_dict(wide.state_dict())
    return Fit(before, after, held_out, sum(len(each.query) for each in fitted), best)


def _joined(core: PrimalCore, sides: Sequence[Sides]) -> Solve:
    """Reduced-rank regression of outputs on the features of both scores, and a constant."""
    rows, rank = core.left.shape[-2], min(core.rank, core.head)
    identity = torch.eye(rows, dtype=torch.float64, device=core.left.device).expand(core.heads, rows, rows)
    squares, products = torch.zeros(()), torch.zeros(())
    for each in sides:
        given = each.query, each.key, each.value
        left, right = core.scores(*given, identity, identity, mask=each.mask, causal=each.causal)
        n = left.shape[-2]
        ones = zeroed(torch.ones_like(left[..., :1]), _real_queries(each))
        features = torch.cat([left, right[..., -n:, :], ones], dim=-1).transpose(0, 1).flatten(1, 2)
        outputs = _outputs(each).transpose(0, 1).flatten(1, 2)
        squares = squares + features.mT @ features  # (h, 2l + 1, 2l + 1)
        products = products + features.mT @ outputs  # (h, 2l + 1, d)
    count = squares[:, -1:, -1:]
    mean, target = squares[:, :-1, -1:] / count, products[:, -1:] / count  # (h, 2l, 1), (h, 1, d)
    covariance = squares[:, :-1, :-1] - count * mean @ mean.mT
    crossed = products[:, :-1] - count * mean @ target

    def solve(ridge: float) -> None:
        full = _inverse(covariance, ridge) @ crossed  # (h, 2l, d)
        # The span of outputs that keeps most of what the full map explains.
        span = torch.linalg.eigh(crossed.mT @ full).eigenvectors[..., -rank:]  # (h, d, s)
        weights = full @ span
        core.left[..., :rank], core.right[..., :rank] = weights[:, :rows], weights[:, rows:]
        core.join.weight.zero_()
        for start in (0, core.rank):
            core.join.weight[..., start : start + rank] = span
        core.join.bias.copy_((target - mean.mT @ weights @ span.mT)[:, 0])

    return solve


def _patterned(core: PrimalCore, sides: Sequence[Sides]) -> Solve:
    """A bilinear pattern by least squares on its outputs, and the kernel SVD of it."""
    cases = [_Case.of(core, each) for each in sides]
    left, right, wanted, points = (
        torch.stack(parts).sum(0)
        for parts in zip(*((case.left, case.right, case.wanted, case.points) for case in cases), strict=True)
    )
    left_values, left_basis = torch.linalg.eigh(left)
    right_values, right_basis = torch.linalg.eigh(right / points)
    # What the sum over points would be if what a query sees had nothing to do with it.
    apart = left_values.clamp_min(0).unsqueeze(-1) * right_values.clamp_min(0).unsqueeze(-2)  # (h, p, p)
    (left_root, left_inverse), (right_root, right_inverse) = _roots(left), _roots(right)
    rank = min(core.rank, left.shape[-1])

    def solve(ridge: float) -> None:
        added = ridge * apart.mean((-2, -1), keepdim=True)
        over = apart + added
        floor = torch.finfo(over.dtype).eps * over.amax((-2, -1), keepdim=True)
        over = over.clamp_min(floor.clamp_min(torch.finfo(over.dtype).tiny))

        def normal(weights: Tensor) -> Tensor:
            return torch.stack([added * weights, *(case.normal(weights) for case in cases)]).sum(0)

        def nearer(gap: Tensor) -> Tensor:
            solved: Tensor = left_basis @ ((left_basis.mT @ gap @ right_basis) / over) @ right_basis.mT
            return solved

        full = _conjugate_gradients(normal, wanted, nearer)
        vectors, values, others = torch.linalg.svd(left_root @ full @ right_root, full_matrices=False)
        values = values[:, None, :rank].sqrt()
        ours = left_inverse @ vectors[..., :rank] * values  # (h, p, s)
        theirs = right_inverse @ others.mT[..., :rank] * values
        # What one side of a component gains in length the other may lose: both get the same.
        lengths = [side.norm(dim=-2, keepdim=True).clamp_min(1e-300) for side in (ours, theirs)]
        balance = (lengths[1] / lengths[0]).sqrt()
        core.root.fill_(1)
        core.right.zero_(), core.right_offset.zero_()
        for weight, offset, side in (
            (core.left, core.left_offset, ours * balance),
            (core.right, core.right_offset, theirs / balance),
        ):
            weight[..., :rank], offset[..., :rank] = side[:, :-1], side[:, -1]

    return solve


@dataclass(frozen=True, eq=False)
class _Case:
    """What least squares need of one batch, with p features a side, the last of them 1.

    Attributes:
        left: sum over queries of squares of left features, (h, p, p).
        right: sum over queries of squares of what they see, right features times values, (h, p, p).
        wanted: what the weights' image has to equal, (h, p, p).
        points: how many queries are real, ().
        normal: from weights to their image, (h, p, p).
    """

    left: Tensor
    right: Tensor
    wanted: Tensor
    points: Tensor
    normal: Callable[[Tensor], Tensor]

    @staticmethod
    def of(core: PrimalCore, sides: Sides) -> "_Case":
        real, asked = None if sides.mask is None else sides.mask[:, None], _real_queries(sides)
        value, outputs = zeroed(sides.value, real), _outputs(sides)
        left = zeroed(_with_one(core.kernel.left_features(sides.query)), asked)  # (b, h, n, p)
        right = zeroed(_with_one(core.kernel.right_features(sides.key)), real)  # (b, h, m, p)
        count = seen_keys(left, right, mask=real, causal=sides.causal).to(left.dtype)  # (b, 1, n or 1, 1)
        squares, points = left.mT @ left, left[..., -1].sum(-1, keepdim=True).unsqueeze(-1)  # (b, h, 1, 1)
        if not sides.causal:
            mixed = right.mT @ value / count  # (b, h, p, d)
            others = mixed @ mixed.mT
            sums = squares, others * points, left.mT @ outputs @ mixed.mT
            normal = lambda weights: (squares @ weights @ others).sum(0)  # noqa: E731
        else:
            past = right.shape[-2] - left.shape[-2]
            # Keys j and j' are seen together from the later of them on.
            weight = torch.nn.functional.pad(left[..., -1] / count[..., 0].square(), (past, 0))
            later = weight.flip(-1).cumsum(-1).flip(-1)  # (b, h, m)
            together = torch.minimum(later.unsqueeze(-1), later.unsqueeze(-2))

            def image(outputs: Tensor) -> Tensor:
                return left.mT @ ((outputs / count) @ value.mT).tril(past) @ right

            def normal(weights: Tensor) -> Tensor:
                return image((left @ weights @ right.mT).tril(past) / count @ value).sum(0)

            sums = squares, right.mT @ ((value @ value.mT) * together) @ right, image(outputs)
        return _Case(sums[0].sum(0), sums[1].sum(0), sums[2].sum(0), points[:, 0].sum(), normal)


def _conjugate_gradients(
    normal: Callable[[Tensor], Tensor], wanted: Tensor, nearer: Callable[[Tensor], Tensor]
) -> Tensor:
    """The solution of normal(x) = wanted for each head; `nearer` is close to the inverse."""
    tiny = torch.finfo(wanted.dtype).tiny
    found, gap = torch.zeros_like(wanted), wanted.clone()
    way = step = nearer(gap)
    size = _dot(gap, step)
    for _ in range(MOST):
        if bool((gap.norm(dim=(-2, -1)) <= TOLERANCE * wanted.norm(dim=(-2, -1))).all()):
            break
        image = normal(way)
        length = size / _dot(way, image).clamp_min(tiny)
        found, gap = found + length * way, gap - length * image
        step = nearer(gap)
        before, size = size, _dot(gap, step)
        way = step + size / before.clamp_min(tiny) * way
    return found


def _dot(one: Tensor, other: Tensor) -> Tensor:
    return (one * other).sum((-2, -1), keepdim=True)


def _inverse(matrix: Tensor, ridge: float) -> Tensor:
    """The inverse of positive matrices with a ridge, without directions that are rounding."""
    values, basis = torch.linalg.eigh(matrix)
    floor = values[..., -1:] * torch.finfo(values.dtype).eps * values.shape[-1]
    inverse = torch.where(values > floor, 1 / (values + ridge * values.mean(-1, keepdim=True)), 0)
    made: Tensor = (basis * inverse.unsqueeze(-2)) @ basis.mT
    return made


def _roots(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """The root of positive matrices and its inverse; directions that are rounding are held up."""
    values, basis = torch.linalg.eigh(matrix)
    floor = values[..., -1:] * torch.finfo(values.dtype).eps * values.shape[-1]
    values = values.clamp_min(floor.clamp_min(torch.finfo(values.dtype).tiny)).sqrt().unsqueeze(-2)
    return (basis * values) @ basis.mT, (basis / values) @ basis.mT


def _with_one(features: Tensor) -> Tensor:
    """Features with one more that is always 1."""
    return torch.cat([features, torch.ones_like(features[..., :1])], dim=-1)


def _errors(core: PrimalCore, sides: Sequence[Sides]) -> Tensor:
    """The norm of what the core gets wrong over that of the host's outputs, (h,)."""
    wrong, size = torch.zeros(()), torch.zeros(())
    for each in sides:
        made = core(each.query, each.key, each.value, mask=each.mask, causal=each.causal, scale=each.scale)
        wanted = _outputs(each)
        wrong = wrong + (made - wanted).square().sum((0, 2, 3))
        size = size + wanted.square().sum((0, 2, 3))
    # A head may give nothing at all: what is wrong there is large, and finite.
    return (wrong / size.clamp_min(torch.finfo(size.dtype).tiny ** 0.5)).sqrt()


def _outputs(sides: Sides) -> Tensor:
    """What the host's core gives, zero at padded queries."""
    return zeroed(sides.output(), _real_queries(sides))


def _real_queries(sides: Sides) -> Tensor | None:
    """Which queries are real, (b, 1, n); they are the last of the points."""
    if sides.mask is None:
        return None
    return sides.mask[:, None, sides.mask.shape[-1] - sides.query.shape[-2] :]


def _parted(sides: Sequence[Sides], every: int) -> tuple[list[Sides], list[Sides]]:
    """The sequences to fit to and those held out, in float64."""
    fitted: list[Sides] = []
    held: list[Sides] = []
    seen = 0
    for each in sides:
        place = torch.arange(seen, seen + len(each.query), device=each.query.device)
        kept_back = place % every == every - 1 if every else torch.zeros_like(place, dtype=torch.bool)
        seen += len(place)
        fitted.extend(_rows(each, ~kept_back))
        held.extend(_rows(each, kept_back))
    return fitted, held


def _rows(sides: Sides, chosen: Tensor) -> Iterator[Sides]:
    """The chosen sequences of a batch as a batch, if there are any."""
    if not bool(chosen.any()):
        return
    mask, bias = sides.mask, sides.bias
    if bias is not None and bias.dim() == 4 and bias.shape[0] == len(chosen):
        bias = bias[chosen]
    query, key, value = (side[chosen].detach().double() for side in (sides.query, sides.key, sides.value))
    mask = None if mask is None else mask[chosen]
    yield replace(sides, query=query, key=key, value=value, mask=mask, bias=bias)
