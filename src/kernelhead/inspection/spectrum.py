"""Singular values of what every attention applied: decay, effective rank, energy kept."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from kernelhead.errors import BadInput
from kernelhead.inspection.cases import Batch, Calls, calls_of
from kernelhead.inspection.leading import SoftmaxProducts, leading
from kernelhead.nn import Attended
from kernelhead.nn.hosts import Sides
from kernelhead.nn.tape import _without_wrappers
from kernelhead.pattern import Pattern
from kernelhead.shapes import check_size


@dataclass(frozen=True)
class LayerSpectrum:
    """The spectrum of one attention, mean over cases.

    Attributes:
        path: of the module in its model.
        kind: class of the module.
        heads: singular values of each head, largest first.
        effective_rank: of each head, the exponential of the entropy of its normalised values.
        energy_rank_90: of each head, components that hold 90 % of the squared values.
        energy_rank_95: the same for 95 %.
        energy_rank_99: the same for 99 %.
        effective_rank_least: of each head, what the effective rank is at least.
        known: how many values were computed, if not all: those after them are the rest of the energy,
            spread evenly, which makes every rank above an upper bound.
    """

    path: str
    kind: str
    heads: list[list[float]]
    effective_rank: list[float]
    energy_rank_90: list[int]
    energy_rank_95: list[int]
    energy_rank_99: list[int]
    effective_rank_least: list[float] = field(default_factory=list)
    known: int | None = None

    @property
    def shares(self) -> list[float]:
        """What each value is of the sum of its head, largest first, mean over heads that are not zero."""
        values = torch.tensor(self.heads, dtype=torch.float64)
        alive = values[values.sum(-1) > 0]
        mean: list[float] = (alive / alive.sum(-1, keepdim=True)).sum(0).div(max(len(alive), 1)).tolist()
        return mean


def effective_rank(values: Tensor) -> Tensor:
    r"""$\exp(-\sum_i p_i \log p_i)$ with $p_i = \sigma_i / \sum_j \sigma_j$; k for k equal values.

    Shapes: values (... k), not negative; returns (...), zero where all values are, in float32 or better.

    Example:
        >>> effective_rank(torch.ones(4))
        tensor(4.)
    """
    values = values.to(torch.promote_types(values.dtype, torch.float32))
    total = values.sum(-1, keepdim=True)
    share = values / total.clamp_min(torch.finfo(values.dtype).tiny)
    return torch.special.entr(share).sum(-1).exp() * (total.squeeze(-1) > 0)


def energy_rank(values: Tensor, share: float) -> Tensor:
    """How many of the largest values hold a share of the sum of squares.

    Shapes: values (... k), largest first; returns (...) whole numbers, zero where all values are.

    Raises:
        BadInput: the share is not between 0 and 1.

    Example:
        >>> energy_rank(torch.tensor([2.0, 1.0, 1.0]), 0.8)
        tensor(2)
    """
    if not 0 < share <= 1:
        raise BadInput(f"energy_rank: share is {share}, expected above 0 and at most 1")
    energy = values.double().square()
    kept = energy.cumsum(-1) / energy.sum(-1, keepdim=True).clamp_min(torch.finfo(torch.float64).tiny)
    rank = ((kept < share - 1e-12).sum(-1) + 1).clamp_max(values.shape[-1])
    return rank * (energy.sum(-1) > 0)


def spectra(
    model: nn.Module,
    batch: Batch,
    mask: Tensor | None = None,
    *,
    learned: bool = False,
    count: int = 64,
    longest: int = 1024,
) -> list[LayerSpectrum]:
    r"""Singular values of every attention of a model on a batch, mean over cases.

    Softmax attention, of kernelhead or of a host that `kernelhead.nn.hosts.find_sites` knows, is read through
    its pattern; a primal layer through the kernel that it stands for, features times landmarks times
    features; others of kernelhead through the pattern that they applied. Padded points are left out.
    A module that is called several times is read as one with more cases; one that is not called, not at all.

    No pattern of more than `longest` points is made: its `count` largest values $\sigma_i$ come from
    products with it, and what they leave of the exact energy $\|A\|_F^2$ is spread evenly over the
    others. No spectrum with these values and this energy has a larger effective rank or larger energy
    ranks. The least effective rank has $\sigma_c$, the last value known, as often as the energy allows.

    Args:
        model: any module; called as ``model(batch)``, ``model(*batch)`` or ``model(**batch)``, or as
            ``model(batch, mask)`` with a mask.
        batch: a tensor, several in order, or by name.
        mask: (b, n), True where real.
        learned: read a primal layer through the rank-s pattern that it learned, in place of the kernel.
        count: values computed of a pattern that is too long.
        longest: points from which on patterns are too long, on their shorter side; 0 makes none.

    Raises:
        BadInput: the model has no attention that can be read or cannot take the batch, the batch reaches
            no attention, or an attention left no pattern.

    Warns:
        NotConverged: values of a long pattern had not settled.

    Example:
        >>> host = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 1)
        >>> read = spectra(host, torch.randn(3, 5, 8))
        >>> read[0].path, len(read[0].heads), len(read[0].heads[0])
        ('layers.0.self_attn', 2, 5)
    """
    check_size("spectra", "count", count)
    check_size("spectra", "longest", longest, least=0)
    found = []
    for calls in calls_of("spectra", model, batch, mask):
        if calls.cases:
            values = [_values(case, count, longest) for case in calls.cases]
        else:
            values = [each for call in calls.recorded for each in _recorded_values(calls, call, learned)]
        # A case without a real point has no value above zero on the tape, and is no case elsewhere.
        alive = [each for each in values if bool(each.leading.any())]
        found.append(_spectrum(_without_wrappers(calls.site.path), calls.site.kind, alive or values))
    return found


def spectrum_record(found: list[LayerSpectrum], *, cases: int, length: int) -> dict[str, Any]:
    """What `spectra` found as a JSON record, with how many cases of which length it was read from."""
    return {"layers": [asdict(each) for each in found], "cases": cases, "length": length}


class _Values(NamedTuple):
    """Singular values of one case's heads, (h, k), the energy of the others, (h,), and how many there are."""

    leading: Tensor
    rest: Tensor
    components: int


def _values(case: Sides, count: int, longest: int) -> _Values:
    components = min(case.query.shape[-2], case.key.shape[-2])
    if components <= longest:
        return _whole(case.pattern().singular_values()[0])
    products = SoftmaxProducts(case)
    values = leading(products, count).values
    rest = (products.energy - values.square().sum(-1)).clamp_min(0)
    return _Values(values.cpu(), rest.cpu() * (values.shape[-1] < components), components)


def _recorded_values(calls: Calls, call: Attended, learned: bool) -> list[_Values]:
    chosen: Pattern | None = call.pattern if learned or call.kernel is None else call.kernel
    if chosen is None:
        raise BadInput(f"spectra: {calls.site.kind} at {calls.site.path!r} recorded no pattern")
    return [_whole(values) for values in chosen.singular_values()]


def _whole(values: Tensor) -> _Values:
    return _Values(values.cpu(), values.new_zeros(values.shape[:-1]).cpu(), values.shape[-1])


def _spectrum(path: str, kind: str, cases: Sequence[_Values]) -> LayerSpectrum:
    """The mean over cases, cut where the values of a case end and completed with what is left."""
    components = max(case.components for case in cases)
    known = min(
        [len(case.leading[0]) for case in cases if len(case.leading[0]) < case.components] or [components]
    )
    cut = torch.stack([_padded(case.leading[:, :known], known) for case in cases])  # (b, h, k)
    rest = torch.stack([case.rest + case.leading[:, known:].square().sum(-1) for case in cases])  # (b, h)
    values, last = cut.mean(0), cut[..., -1]
    # The sum of the rest: at least its energy over the value that none of it exceeds.
    least = torch.where(last > 0, rest / last.clamp_min(torch.finfo(last.dtype).tiny), 0).mean(0)
    even = (rest.mean(0) / max(components - known, 1)).sqrt().clamp_max(values[:, -1])
    heads = torch.cat([values, even[:, None].expand(-1, components - known)], dim=-1)
    ninety, more, most = (energy_rank(heads, share).tolist() for share in (0.9, 0.95, 0.99))
    return LayerSpectrum(
        path,
        kind,
        heads.tolist(),
        effective_rank(heads).tolist(),
        ninety,
        more,
        most,
        effective_rank_least=_least_rank(values, least).tolist(),
        known=None if known == components else known,
    )


def _least_rank(values: Tensor, rest: Tensor) -> Tensor:
    """Effective rank of values (h, k) after which the last one is repeated until they sum to `rest`, (h,)."""
    total = (values.sum(-1) + rest).unsqueeze(-1).clamp_min(torch.finfo(values.dtype).tiny)
    entropy = torch.special.entr(values / total).sum(-1)
    last = (values[:, -1:] / total).squeeze(-1).clamp_min(torch.finfo(values.dtype).tiny)
    return (entropy - rest / total.squeeze(-1) * last.log()).exp() * (values.sum(-1) > 0)


def _padded(values: Tensor, count: int) -> Tensor:
    return torch.nn.functional.pad(values, (0, count - values.shape[-1]))
