"""Singular values of what every attention applied: decay, effective rank, energy kept."""

from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn

from kernelhead.errors import BadInput
from kernelhead.nn import evaluating, record


@dataclass(frozen=True)
class LayerSpectrum:
    """The spectrum of one attention, mean over cases.

    Attributes:
        path: of the module in its model.
        kind: class of the module.
        heads: singular values of each head, largest first.
        effective_rank: of each head, the exponential of the entropy of its normalised values.
        energy_rank_90: of each head, components that hold 90 % of the squared values; 95 and 99 likewise.
    """

    path: str
    kind: str
    heads: list[list[float]]
    effective_rank: list[float]
    energy_rank_90: list[int]
    energy_rank_95: list[int]
    energy_rank_99: list[int]

    @property
    def shares(self) -> list[float]:
        """What each value is of the sum of its head, largest first, mean over heads that are not zero."""
        values = torch.tensor(self.heads, dtype=torch.float64)
        alive = values[values.sum(-1) > 0]
        mean: list[float] = (alive / alive.sum(-1, keepdim=True)).sum(0).div(max(len(alive), 1)).tolist()
        return mean


def effective_rank(values: Tensor) -> Tensor:
    r"""$\exp(-\sum_i p_i \log p_i)$ with $p_i = \sigma_i / \sum_j \sigma_j$; k for k equal values.

    Shapes: values (... k), not negative; returns (...), zero where all values are.

    Example:
        >>> effective_rank(torch.ones(4))
        tensor(4.)
    """
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
    model: nn.Module, x: Tensor, mask: Tensor | None = None, *, learned: bool = False
) -> list[LayerSpectrum]:
    """Singular values of every attention of a model on a batch, mean over the batch.

    A primal layer is read through the kernel that it stands for, features times landmarks times
    features; other attentions through the pattern that they applied. Padded points are zero rows
    and columns, so that they add zero values only.

    Args:
        model: any module with attentions of kernelhead; called as ``model(x, mask)``.
        x: a batch, as the model takes it.
        mask: (b, n), True where real.
        learned: read a primal layer through the rank-s pattern that it learned, in place of the kernel.

    Example:
        >>> from kernelhead.models import SequenceClassifier
        >>> model = SequenceClassifier(2, channels=1, width=8, heads=2, depth=1, attention="softmax")
        >>> read = spectra(model, torch.randn(3, 5, 1))
        >>> read[0].path, len(read[0].heads), len(read[0].heads[0])
        ('blocks.0.attention', 2, 5)
    """
    with evaluating(model), torch.no_grad(), record(model, patterns=True) as tape:
        model(x, mask)
    found = []
    for path, module in tape.modules.items():
        call = tape.last(path)
        chosen = call.pattern if learned or call.kernel is None else call.kernel
        if chosen is None:
            raise BadInput(f"spectra: {type(module).__name__} at {path!r} recorded no pattern")
        found.append(_spectrum(path, type(module).__name__, chosen.singular_values().mean(0).cpu()))
    return found


def spectrum_record(found: list[LayerSpectrum], *, cases: int, length: int) -> dict[str, Any]:
    """What `spectra` found as a JSON record, with how many cases of which length it was read from."""
    return {"layers": [asdict(each) for each in found], "cases": cases, "length": length}


def _spectrum(path: str, kind: str, values: Tensor) -> LayerSpectrum:
    ranks = [energy_rank(values, share).tolist() for share in (0.9, 0.95, 0.99)]
    return LayerSpectrum(path, kind, values.tolist(), effective_rank(values).tolist(), *ranks)
