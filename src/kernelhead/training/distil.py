"""Teach a grafted model what its host did: attention by attention, then as a whole."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from kernelhead.errors import BadInput, unknown
from kernelhead.nn import evaluating, ksvd_penalty, record
from kernelhead.nn.cores import AbstractCore, PrimalCore
from kernelhead.nn.hosts import Sides, Site, called, find_sites, reading
from kernelhead.nn.hosts.watching import asked
from kernelhead.rng import generator
from kernelhead.shapes import zeroed
from kernelhead.surgery import restore
from kernelhead.training.course import Course
from kernelhead.training.resident import fit_resident
from kernelhead.training.steps import Fitted

Inputs = Tensor | Mapping[str, Tensor]
Gap = tuple[Tensor, Tensor]
TRAINED = ("cores", "attention", "all")
MASK = "attention_mask"  # what Hugging Face calls it


@dataclass(frozen=True)
class Distilled:
    """What a model learned from its host; errors are relative, on cases that it did not learn from.

    Attributes:
        sites: by path, the error of what each core makes of the host's own queries, keys and values,
            before and after.
        output: the error of the model's output before, after the first part, and at the end.
        layers: the first part, attention by attention.
        whole: the second part, None where there was none.
    """

    sites: dict[str, tuple[float, float]]
    output: tuple[float, float, float]
    layers: Fitted
    whole: Fitted | None

    def record(self) -> dict[str, Any]:
        """All of it as JSON can hold it, with learning curves."""
        parts = {"layers": self.layers, "whole": self.whole}
        return {
            "sites": {path: {"before": one, "after": other} for path, (one, other) in self.sites.items()},
            "output": dict(zip(("before", "between", "after"), self.output, strict=True)),
            "curves": {
                name: {"loss": part.losses, "error": [-figure for figure in part.watched]}
                for name, part in parts.items()
                if part is not None
            },
        }


def distil(
    model: nn.Module,
    inputs: Inputs,
    *,
    layers: Course,
    whole: Course | None = None,
    train: str = "cores",
    validation: float = 0.1,
    every: int = 50,
    patience: int | None = 5,
) -> Distilled:
    """Train what was grafted until it does what the host did, on the user's own inputs without labels.

    First every core learns, from the host's own queries, keys and values, what the host's attention
    made of them. Then, with `whole`, the model learns to put out what its host does; its `eta` is
    the weight of the KSVD penalty of primal cores. Both parts look at held-out cases and keep the best
    weights, those they began with if none are better; dropout is off.

    Shapes: inputs (cases, ...), as the model takes a batch of them; several by name.

    Args:
        model: with grafts; on the device of the inputs.
        inputs: all cases; of several, "attention_mask" says which points count.
        layers: how the first part is trained.
        whole: how the second one is; None to leave it out.
        train: what the second part trains: the "cores", all of each grafted "attention", or "all".
        validation: share of the cases that is held out.
        every: steps from one look to the next.
        patience: looks without a better one after which a part ends; None to go on.

    Raises:
        BadInput: nothing is grafted or what is has no weights to train, the cases are too few, or the model
            cannot take them or puts out nothing to compare.
        UnknownName: no such thing to train.
    """
    if train not in TRAINED:
        raise unknown("distil", "train", train, TRAINED)
    sites = [site for site in find_sites(model) if isinstance(_core(site), AbstractCore)]
    if not sites:
        raise BadInput(f"distil: nothing is grafted into {type(model).__name__}; `graft` puts a core into it")
    if not any(weight.requires_grad for site in sites for weight in _core(site).parameters()):
        raise BadInput("distil: what is grafted has no weights to train")
    names, columns = (None, (inputs,)) if isinstance(inputs, Tensor) else ([*inputs], (*inputs.values(),))
    count = len(columns[0])
    held = round(validation * count)
    if not 0 < held < count:
        raise BadInput(f"distil: a share of {validation} holds out {held} of {count} cases, expected some")
    order = torch.randperm(count, generator=generator(layers.seed)).to(columns[0].device)
    learned, kept = (tuple(each[part] for each in columns) for part in (order[held:], order[:held]))
    lesson = _Lesson(model, sites, names, kept, layers.batch)
    trained = {
        "cores": [*lesson.cores.values()],
        "attention": [site.module for site in sites],
        "all": [model],
    }
    unused = torch.zeros(count - held, device=order.device)
    # Hosts are anyone's: what they do in a step may be no graph.
    looks: dict[str, Any] = {"compiled": False, "captured": False, "every": every, "patience": patience}
    with evaluating(model):
        before, output = lesson.apart(), [lesson.error()]
        with _training_only(model, trained["cores"]), _no_worse(model, lambda: sum(lesson.apart().values())):
            first = fit_resident(
                nn.ModuleList(trained["cores"]),
                learned,
                unused,
                layers,
                loss=lambda _, x, __: lesson.loss_apart(x),
                watch=lambda _: -sum(lesson.apart().values()),
                **looks,
            )
        output.append(lesson.error())
        second = None
        if whole is not None:
            with _training_only(model, trained[train]), _no_worse(model, lesson.error):
                second = fit_resident(
                    _Still(model),
                    learned,
                    unused,
                    replace(whole, eta=0.0),
                    loss=lambda _, x, __: lesson.loss_whole(x, whole.eta, whole.reduction),
                    watch=lambda _: -lesson.error(),
                    **looks,
                )
        after = lesson.apart()
        output.append(lesson.error())
    pairs = {path: (error, after[path]) for path, error in before.items()}
    return Distilled(pairs, (output[0], output[1], output[2]), first, second)


class _Lesson:
    """A model beside its host, and how far apart they are."""

    def __init__(
        self,
        model: nn.Module,
        sites: Sequence[Site],
        names: Sequence[str] | None,
        kept: tuple[Tensor, ...],
        batch: int,
    ) -> None:
        self.model, self.names, self.kept, self.batch = model, names, kept, batch
        self.cores = {site.path: _core(site) for site in sites}
        self.host = deepcopy(model).eval().requires_grad_(False)
        restore(self.host)
        self.primal = any(isinstance(core, PrimalCore) for core in self.cores.values())

    def loss_apart(self, x: Any) -> Tensor:
        """Mean over sites of the squared relative error on the host's own sides."""
        gaps = [_ratio(*gap) for gap in self._gaps(x).values()]
        return torch.stack(gaps).mean()

    def loss_whole(self, x: Any, eta: float, reduction: str) -> Tensor:
        """The squared relative error of the output, and the penalty of primal cores."""
        if not (eta and self.primal):
            return _ratio(*self._gap(x))
        with record(self.model) as tape:
            gap = self._gap(x)
        return _ratio(*gap) + eta * ksvd_penalty(tape, reduction=reduction)

    @torch.no_grad()
    def apart(self) -> dict[str, float]:
        """The relative error of each core on held-out cases."""
        parts = [self._gaps(part) for part in self._parts()]
        return {path: _relative([part[path] for part in parts]) for path in self.cores}

    @torch.no_grad()
    def error(self) -> float:
        """The relative error of the model's output on held-out cases."""
        with evaluating(self.model):
            return _relative([self._gap(part) for part in self._parts()])

    def _gaps(self, x: Any) -> dict[str, Gap]:
        with torch.no_grad(), reading(self.host) as seen:
            asked("distil", self.host, self._batch(x))
        found = {}
        for path, core in self.cores.items():
            if not seen[path]:
                raise BadInput(f"distil: the attention at {path!r} was not called by these inputs")
            calls = [_gap_of(core, sides) for sides in seen[path]]
            found[path] = (_sum(call[0] for call in calls), _sum(call[1] for call in calls))
        return found

    def _gap(self, x: Any) -> Gap:
        batch = self._batch(x)
        made = _output(called(self.model, batch))
        with torch.no_grad():
            wanted = _output(called(self.host, batch))
        mask = batch.get(MASK) if isinstance(batch, dict) else None
        if mask is not None and wanted.dim() > 2 and mask.shape == wanted.shape[:2]:
            made, wanted = (each[mask.bool()] for each in (made, wanted))
        return (made - wanted).square().sum(), wanted.square().sum()

    def _batch(self, x: Any) -> Any:
        parts = x if isinstance(x, tuple) else (x,)
        return parts[0] if self.names is None else dict(zip(self.names, parts, strict=True))

    def _parts(self) -> Iterator[tuple[Tensor, ...]]:
        yield from zip(*(each.split(self.batch) for each in self.kept), strict=True)


class _Still(nn.Module):
    """A model that stays in the mode it is in: its host is matched without noise."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def train(self, mode: bool = True) -> "_Still":
        """Of this, and not of the model."""
        self.training = mode
        return self


def _core(site: Site) -> Any:
    return getattr(site.module, "kernelhead", None)


def _gap_of(core: AbstractCore, sides: Sides) -> Gap:
    """Squared error of a core at real queries, and the square of what the host made there."""
    given = [side.detach() for side in (sides.query, sides.key, sides.value)]
    made = core(*given, mask=sides.mask, causal=sides.causal, scale=sides.scale)
    wanted = sides.output().detach()
    mask = sides.mask
    if mask is not None and made.shape[-2] == mask.shape[-1]:
        made, wanted = (zeroed(each, mask[:, None]) for each in (made, wanted))
    return (made - wanted).square().sum(), wanted.square().sum()


def _ratio(error: Tensor, size: Tensor) -> Tensor:
    return error / size.clamp_min(torch.finfo(size.dtype).tiny)


def _relative(gaps: Sequence[Gap]) -> float:
    return float(_ratio(_sum(gap[0] for gap in gaps), _sum(gap[1] for gap in gaps)).sqrt())


def _sum(each: Iterable[Tensor]) -> Tensor:
    """The sum of scalars."""
    return torch.stack([*each]).sum()


def _output(made: Any) -> Tensor:
    """What a model puts out: a tensor, or the logits or last states of Hugging Face."""
    for name in ("logits", "last_hidden_state"):
        if isinstance(getattr(made, name, None), Tensor):
            return getattr(made, name)
    if isinstance(made, (tuple, list)) and made:
        made = made[0]
    if not isinstance(made, Tensor):
        raise BadInput(
            f"distil: the model puts out {type(made).__name__}, expected a tensor, logits or states"
        )
    return made


@contextmanager
def _no_worse(model: nn.Module, error: Callable[[], float]) -> Iterator[None]:
    """What a model trains is again as it was before the block, where the error after it is larger."""
    trained = [weight for weight in model.parameters() if weight.requires_grad]
    before, least = [weight.detach().clone() for weight in trained], error()
    yield
    if not error() <= least:
        with torch.no_grad():
            for weight, old in zip(trained, before, strict=True):
                weight.copy_(old)


@contextmanager
def _training_only(model: nn.Module, parts: Sequence[nn.Module]) -> Iterator[None]:
    """Gradients for the weights of some parts alone, of those that had them."""
    wanted = {weight for part in parts for weight in part.parameters() if weight.requires_grad}
    had = {weight: weight.requires_grad for weight in model.parameters()}
    try:
        for weight in had:
            weight.requires_grad_(weight in wanted)
        yield
    finally:
        for weight, wants in had.items():
            weight.requires_grad_(wants)
