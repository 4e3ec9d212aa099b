"""Which layers of a model could go primal, at which rank, within which error, and what that saves."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from math import inf
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from kernelhead.errors import BadInput, unknown
from kernelhead.inspection.cases import Batch, calls_of
from kernelhead.inspection.costs import Cost, Costs, device_name
from kernelhead.inspection.leading import SoftmaxProducts, leading
from kernelhead.nn.hosts import Sides, Site, find_sites
from kernelhead.ops.eager.softmax import wide
from kernelhead.shapes import check_size

OF = ("output", "pattern")
NOTE = (
    "Errors are those of the truncated SVD of each input's own pattern, the nearest pattern of that rank. A "
    "primal core has one set of weights for all inputs and scores that are linear in the features of a head: "
    "it comes as near only as far as its class allows. So the plan is a necessary condition and no promise; "
    "what it names is still to be fitted or trained, and measured. For the output the rank is a guide, as a "
    "pattern that is made for the values may need a lower one; what binds there is least_rank, below which "
    "no primal core is within the error, whatever its weights. For causal layers it is a guide too: a causal "
    "core hides the future in a pattern of that rank, and what is left may have any rank."
)


@dataclass(frozen=True)
class LayerPlan:
    """What one attention needs to stay within the error.

    Attributes:
        path: of the attention in its model.
        kind: its class.
        points: of the longest case.
        causal: whether points see those before them only.
        head_ranks: smallest rank of each head within the error; None where more is needed than was computed.
        rank: of all heads, so that every one of them is within the error; where the error is that of the
            output, `least_rank` at least.
        pattern_error: at that rank, of the worst head; at the largest rank computed where `rank` is None.
        output_error: the same for the output of the core.
        least_rank: below which no primal core is within the error on the output, whatever its weights: what
            a pattern gives for a case has its rank at most, unless causal, and what joined scores give for
            all cases lies in 2 s dimensions around one point.
        reason: why it cannot go primal or would save nothing, in words; empty where it can.
        softmax: the cost of the softmax core.
        at_rank: the cost of the primal core at `rank`; None where there can be none.
    """

    path: str
    kind: str
    points: int
    causal: bool
    head_ranks: tuple[int | None, ...]
    rank: int | None
    pattern_error: float
    output_error: float
    least_rank: int
    reason: str
    softmax: Cost
    at_rank: Cost | None

    @property
    def primal(self) -> bool:
        """Whether it can go primal and save anything."""
        return not self.reason


@dataclass(frozen=True)
class Plan:
    """What every softmax attention of a model needs to stay within an error.

    Attributes:
        error: allowed, relative.
        of: what it is measured on, "output" or "pattern".
        layers: in the order of the model.
        skipped: why other attentions were left out, by path.
        cases: from how many cases.
        device: where costs were measured.
    """

    error: float
    of: str
    layers: tuple[LayerPlan, ...]
    skipped: dict[str, str]
    cases: int
    device: str

    def rows(self) -> list[dict[str, str]]:
        """A table, one row a layer; ratios are softmax over primal, so that above 1 the primal core saves."""
        return [_row(layer) for layer in self.layers]

    def __str__(self) -> str:
        """The table as text."""
        rows = self.rows()
        lines = [list(rows[0]), *(list(row.values()) for row in rows)] if rows else []
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        return "\n".join(
            "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
            for line in lines
        )


def plan(
    model: nn.Module,
    batch: Batch,
    *,
    error: float = 0.1,
    of: str = "output",
    landmarks: int | None = None,
    count: int = 64,
    longest: int = 1024,
    repeats: int = 5,
) -> Plan:
    r"""Find the smallest rank at which each softmax attention of a model stays within an error.

    In each head and case the pattern A is replaced by its truncated SVD $A_s$. The error of the output is
    $\|A_s V - A V\| / \|A V\|$ and that of the pattern $\|A_s - A\| / \|A\|$, in the Frobenius norm over all
    cases; the rank of a layer keeps every head within the error. A layer can go primal if that rank saves
    multiply-adds and is not above what the scores of a head can have, d + 1, and if a graft is possible.

    The plan is a necessary condition and no promise; `plan_record` says so in words.

    Args:
        model: any module with attention that `kernelhead.nn.hosts.find_sites` knows.
        batch: called as ``model(batch)``, ``model(*batch)`` or ``model(**batch)``.
        error: allowed, above 0 and below 1.
        of: what the error is taken of, "output" or "pattern".
        landmarks: of the primal cores, which then join their scores; with None they apply a pattern.
        count: components computed of a pattern that is too long, and so the largest rank found for it.
        longest: points from which on patterns are too long to be made.
        repeats: of each measurement; 0 measures nothing.

    Raises:
        BadInput: the error is not between 0 and 1, the model has no softmax attention that can be read, it
            cannot take the batch, or a number is not finite.
        UnknownName: `of` is neither "output" nor "pattern".

    Example:
        >>> from kernelhead.rng import seeded
        >>> with seeded(0):
        ...     host = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        ...     found = plan(host, torch.randn(2, 12, 8), error=0.2, repeats=0)
        >>> found.layers[0].path, found.layers[0].rank, found.layers[0].primal
        ('self_attn', 3, True)
    """
    if not 0 < error < 1:
        raise BadInput(f"plan: error is {error!r}, expected a number above 0 and below 1")
    if of not in OF:
        raise unknown("plan", "measure", of, OF)
    for name, value, least in (("count", count, 1), ("longest", longest, 0), ("repeats", repeats, 0)):
        check_size("plan", name, value, least=least)
    if landmarks is not None:
        check_size("plan", "landmarks", landmarks)
    read = {calls.site.path: calls for calls in calls_of("plan", model, batch)}
    layers: list[LayerPlan] = []
    skipped: dict[str, str] = {}
    costs = Costs(landmarks, repeats)
    for site in find_sites(model):
        if site.path not in read:
            skipped[site.path] = "was not called" if site.readable else str(site.reason)
        elif read[site.path].recorded:
            skipped[site.path] = f"{site.kind} has no softmax core"
        else:
            layers.append(_layer(site, read[site.path].cases, error, of, count, longest, costs))
    if not layers:
        why = "; ".join(f"{path or type(model).__name__}: {reason}" for path, reason in skipped.items())
        raise BadInput(f"plan: {type(model).__name__} has no softmax attention ({why})")
    first = read[layers[0].path].cases
    return Plan(error, of, tuple(layers), skipped, len(first), device_name(first[0].query.device))


def plan_record(found: Plan) -> dict[str, Any]:
    """A plan as a JSON record, with what it does not promise.

    Args:
        found: the plan.

    Example:
        >>> host = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        >>> list(plan_record(plan(host, torch.zeros(2, 12, 8), repeats=0)))
        ['error', 'of', 'layers', 'skipped', 'cases', 'device', 'note']
    """
    layers = [
        asdict(layer) | {"head_ranks": list(layer.head_ranks), "primal": layer.primal}
        for layer in found.layers
    ]
    return {
        "error": found.error,
        "of": found.of,
        "layers": layers,
        "skipped": found.skipped,
        "cases": found.cases,
        "device": found.device,
        "note": NOTE,
    }


class _Left(NamedTuple):
    """What components leave of the energy of one case, and the moments of its outputs.

    Shapes: energy (2, h, k + 1), of pattern and output after 0, 1, ... components; total (h, e, 1) and moment
    (h, e, e), sums over points.
    """

    energy: Tensor
    total: Tensor
    moment: Tensor
    points: int
    whole: bool


def _layer(
    site: Site, cases: Sequence[Sides], error: float, of: str, count: int, longest: int, costs: Costs
) -> LayerPlan:
    left = [_left(site, case, count, longest) for case in cases]
    energy = _pooled(left)  # (2, h, k + 1)
    within = (energy <= error**2 * energy[..., :1])[OF[::-1].index(of)]
    ranks = [max(1, int(each.int().argmax())) if bool(each.any()) else None for each in within]
    joined, causal = costs.landmarks is not None, any(case.causal for case in cases)
    least = _least_rank(left, error, joined) if joined or not causal else 1
    rank = None if None in ranks else max(each for each in ranks if each is not None)
    rank = max(rank, least) if rank is not None and of == "output" else rank
    computed = energy.shape[-1] - 1
    at = computed if rank is None else min(rank, computed)
    total = energy[..., 0].clamp_min(torch.finfo(energy.dtype).tiny)
    pattern_error, output_error = (energy[..., at] / total).sqrt().amax(-1).tolist()
    reason = _barrier(site, cases) or (f"it needs more than {computed} components" if rank is None else "")
    softmax, at_rank = costs.of(cases, None if reason else rank)
    points = max(case.query.shape[-2] for case in cases)
    return LayerPlan(
        site.path,
        site.kind,
        points,
        causal,
        tuple(ranks),
        rank,
        pattern_error,
        output_error,
        least,
        reason or _waste(rank, points, site.head, softmax, at_rank),
        softmax,
        at_rank,
    )


def _left(site: Site, case: Sides, count: int, longest: int) -> _Left:
    value = wide(case.value[0])  # (h, m, e)
    if not all(bool(side.isfinite().all()) for side in (case.query, case.key, value)):
        raise BadInput(f"plan: {site.kind} at {site.path!r} got a number that is not finite")
    whole = min(case.query.shape[-2], case.key.shape[-2]) <= longest
    if whole:
        entries = case.pattern().matrix()[0]
        vectors, values, _ = torch.linalg.svd(entries, full_matrices=False)
        output = entries @ value
    else:
        products = SoftmaxProducts(case)
        (vectors, values), output = leading(products, count), products.apply(value)
    output = output.double()
    # A_s = U_s U_s' A: what a component adds to the output is U' A V.
    parts = torch.stack([values.double().square(), (vectors.double().mT @ output).square().sum(-1)])
    if whole:
        rest = torch.zeros_like(parts[..., :1])
    else:
        energy = torch.stack([products.energy.double(), output.square().sum((-2, -1))])
        rest = (energy - parts.sum(-1)).clamp_min(0).unsqueeze(-1)
    energy = torch.cat([parts, rest], dim=-1).flip(-1).cumsum(-1).flip(-1)
    return _Left(energy, output.sum(-2).unsqueeze(-1), output.mT @ output, output.shape[-2], whole)


def _pooled(left: Sequence[_Left]) -> Tensor:
    """Energies of all cases together, as far as the components of every one are known."""
    most = max(each.energy.shape[-1] for each in left)
    most = min([most, *(each.energy.shape[-1] for each in left if not each.whole)])
    pad = torch.nn.functional.pad
    return torch.stack(
        [pad(each.energy[..., :most], (0, max(0, most - each.energy.shape[-1]))) for each in left]
    ).sum(0)


def _least_rank(left: Sequence[_Left], error: float, joined: bool) -> int:
    """The dimensions of the outputs that the error demands, of the worst head; half of them where joined."""
    moments = torch.stack([each.moment for each in left])  # (b, h, e, e)
    total = torch.stack([each.total for each in left]).sum(0)  # (h, e, 1)
    energy = moments.diagonal(dim1=-2, dim2=-1).sum((0, -1)).unsqueeze(-1)  # (h, 1)
    if joined:
        spread = torch.linalg.eigvalsh(moments.sum(0) - total @ total.mT / sum(each.points for each in left))
    else:
        spread = torch.linalg.eigvalsh(moments).sum(0)
    needed = int((spread.clamp_min(0).cumsum(-1) > error**2 * energy).sum(-1).max())  # values ascend
    return max(1, (needed + 1) // 2 if joined else needed)


def _barrier(site: Site, cases: Sequence[Sides]) -> str:
    """Why no primal core can take its place, whatever the rank; empty if one can."""
    if site.reason is not None and site.family != "kernelhead":
        return f"it {site.reason}"
    if site.cross or any(case.query.shape[-2] != case.key.shape[-2] for case in cases):
        return "it attends to other points than its own"
    return ""


def _waste(rank: int | None, points: int, head: int, softmax: Cost, at_rank: Cost | None) -> str:
    """Why a primal core of that rank would not do or not pay; empty if it would."""
    if rank is None or at_rank is None:
        return ""
    if at_rank.multiply_adds >= softmax.multiply_adds:
        return f"rank {rank} saves no multiply-adds at {points} points"
    # Scores are linear in the features of a head and an offset.
    return f"scores of {head} features have no rank {rank}" if rank > head + 1 else ""


def _row(layer: LayerPlan) -> dict[str, str]:
    heads = sorted(layer.head_ranks, key=lambda each: inf if each is None else each)
    low, primal = layer.at_rank, layer.reason or "yes"
    if layer.primal and low and (low.seconds or 0) > (layer.softmax.seconds or inf):
        primal = "yes, but slower here"
    return {
        "layer": layer.path or layer.kind,
        "points": str(layer.points),
        "rank": _word(layer.rank),
        "of heads": f"{_word(heads[0])} to {_word(heads[-1])}",
        "least": str(layer.least_rank),
        "pattern error": f"{layer.pattern_error:.3f}",
        "output error": f"{layer.output_error:.3f}",
        "multiply-adds": _ratio(layer.softmax.multiply_adds, low.multiply_adds if low else None),
        "held": _ratio(layer.softmax.held, low.held if low else None),
        "time": _ratio(layer.softmax.seconds, low.seconds if low else None),
        "peak": _ratio(layer.softmax.peak, low.peak if low else None),
        "goes primal": primal,
    }


def _word(number: int | None) -> str:
    return "-" if number is None else str(number)


def _ratio(softmax: float | None, primal: float | None) -> str:
    return f"{softmax / primal:.2f}" if softmax is not None and primal else "-"
