"""Put our attention into someone else's model, say what changed, and take it out again."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from inspect import signature
from typing import Any, cast

import torch
from torch import Tensor, nn

from kernelhead.errors import BadInput, unknown
from kernelhead.nn.cores import CORES, AbstractCore, PrimalCore, core_of
from kernelhead.nn.hosts import Sides, Site, reading
from kernelhead.nn.hosts.watching import asked
from kernelhead.nn.modes import evaluating
from kernelhead.rng import seeded
from kernelhead.surgery.adapters import ADAPTERS
from kernelhead.surgery.initial import fit_primal
from kernelhead.surgery.report import Graft, Report
from kernelhead.surgery.sites import Where, select, sites_for

# The child of a host's attention module, and where its graft is remembered.
CHILD, MARK = "kernelhead", "_kernelhead_graft"
OPTIONS = tuple(sorted({*signature(core_of).parameters} - {"name", "heads", "head"}))  # of cores
# What hosts call the parts that make queries, keys and values, where each has its own.
_PARTS = {
    "query": ("query", "q_proj", "q_lin", "q_norm", "q_proj_weight"),
    "key": ("key", "k_proj", "k_lin", "k_norm", "k_proj_weight"),
    "value": ("value", "v_proj", "v_lin", "v_proj_weight"),
}


@dataclass(frozen=True, eq=False)
class Planned:
    """A core that is ready for a site."""

    site: Site
    core: AbstractCore
    graft: Graft


def graft(
    model: nn.Module,
    to: str = "primal",
    where: Where = "last",
    *,
    rank: int | None = None,
    landmarks: int | None = None,
    options: Mapping[str, Any] | None = None,
    data: Any = None,
    seed: int = 0,
    dry_run: bool = False,
) -> Report:
    """Let attentions of a model compute with a core of ours, between their own projections.

    The host keeps its parameters, their names and values; what is added lives in a child
    `kernelhead` of each attention module. Attention dropout of the host is not applied by a core.
    Grafting the same again changes nothing; another core replaces the one that is there.

    Args:
        model: the host, changed in place.
        to: name of the core, see `kernelhead.nn.core_of`.
        where: ``"last"``, ``"all"``, a list of paths (of an attention, or of a part of the model that
            holds some) and of indices among those that can be grafted, or a function of a `Site`.
        rank: components of a primal core.
        landmarks: rows that a core takes its feature map from.
        options: further options of the core.
        data: what the model is called with to fit a primal core to the attention it replaces: a
            tensor, a mapping of keyword arguments or a tuple of arguments; or an iterable of these.
            Without it the weights are random.
        seed: of the random weights.
        dry_run: report only.

    Raises:
        BadInput: nothing in the model matches, the core cannot do what a site needs, `data` is given for
            a core that cannot be fitted, or the model cannot take it.
        UnknownName: there is no such core, or no core has such an option.

    Example:
        >>> layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        >>> print(graft(layer, "softmax"))
        graft: 1 attention, 0 parameters
          self_attn (MultiheadAttention, torch): softmax, 0 parameters added
    """
    if to not in CORES:
        raise unknown("graft", "core", to, CORES)
    if data is not None and not issubclass(CORES[to][0], PrimalCore):
        raise BadInput(f"graft: `data` fits primal cores only, not {to!r}")
    for name in options or ():
        if name not in OPTIONS:
            raise unknown("graft", "option", name, OPTIONS)
    found = sites_for(model, CORES[to][0].crosses)
    chosen, skipped = select(found, where)
    given = {"rank": rank, "landmarks": landmarks, **(options or {})}
    planned, unchanged, old = [], [], {}
    for site in chosen:
        # The place in the model names the stream: attentions grafted one by one are those grafted at once.
        with seeded(seed, found.index(site)):
            core = core_of(to, heads=site.heads, head=site.head, **given)
        if site.causal:
            _try_causal(core)
        plan = Planned(site, core, described(model, site, core, to, seed))
        before = getattr(site.module, MARK, None)
        if before is not None and _same(before, plan.graft, data is not None):
            unchanged.append(site.path)
            continue
        if before is not None:
            old[site.path] = Planned(site, getattr(site.module, CHILD), before)
        planned.append(plan)
    if planned and not dry_run:
        planned = _exchanged(model, planned, old, data)
    done = tuple(plan.graft for plan in planned)
    return Report("graft", done, tuple(old), tuple(unchanged), skipped, dry_run)


def restore(model: nn.Module) -> Report:
    """Take every graft out: outputs, state dict and flags are the host's again, bit for bit.

    What training changed in the host's own parameters stays changed.

    Args:
        model: the host with its grafts.

    Example:
        >>> layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        >>> names = [*layer.state_dict()]
        >>> _ = graft(layer, "rpc")
        >>> len(restore(layer).done), [*layer.state_dict()] == names
        (1, True)
    """
    found = grafts(model)
    for each in found.values():
        _take(model, model.get_submodule(each.path))
    return Report("restore", tuple(found.values()))


def grafts(model: nn.Module) -> dict[str, Graft]:
    """What is grafted in a model, by the path of the host's attention module.

    Example:
        >>> layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        >>> _ = graft(layer, "softmax")
        >>> {path: each.method for path, each in grafts(layer).items()}
        {'self_attn': 'softmax'}
    """
    return {
        path: replace(getattr(module, MARK), path=path)
        for path, module in model.named_modules()
        if hasattr(module, MARK)
    }


def place(model: nn.Module, plan: Planned) -> Graft:
    """Put a core into its site, in the precision, on the device and in the mode of the host."""
    module = plan.site.module
    core = like(plan.core, module).train(module.training)
    module.add_module(CHILD, core)
    try:
        ADAPTERS[plan.site.family][0](model, module)
    except BaseException:
        delattr(module, CHILD)
        raise
    frozen = _freed(model, module, core)
    for name in frozen:
        module.get_parameter(name).requires_grad_(False)
    done = replace(plan.graft, frozen=tuple(frozen))
    setattr(module, MARK, done)
    return done


def _take(model: nn.Module, module: nn.Module) -> None:
    mark: Graft = getattr(module, MARK)
    ADAPTERS[mark.family][1](model, module)
    for name in mark.frozen:
        module.get_parameter(name).requires_grad_(True)
    delattr(module, CHILD)
    delattr(module, MARK)


def like(core: AbstractCore, module: nn.Module) -> AbstractCore:
    """The core in the precision and on the device of a host's module."""
    own = next((p for p in module.parameters() if p.is_floating_point()), None)
    return core if own is None else core.to(device=own.device, dtype=own.dtype)


def described(model: nn.Module, site: Site, core: AbstractCore, method: str, seed: int) -> Graft:
    """What a graft of a core into a site of a model will be."""
    size = sum(p.numel() for p in core.parameters())
    frozen = tuple(_freed(model, site.module, core))
    return Graft(site.path, site.family, site.kind, method, core.options(), size, frozen, seed)


@torch.no_grad()
def _try_causal(core: AbstractCore) -> None:
    """A core that cannot be causal says so before anything is changed."""
    point = torch.zeros(1, core.heads, 1, core.head)
    core(point, point, point, causal=True)


def _same(before: Graft, now: Graft, fitted: bool) -> bool:
    return (before.method, before.options, before.seed, before.fit is not None) == (
        now.method,
        now.options,
        now.seed,
        fitted,
    )


def _freed(model: nn.Module, module: nn.Module, core: AbstractCore) -> list[str]:
    """Learned parameters of a host that a core leaves without a gradient, where they stand alone."""
    parts = tuple(part for side in sorted(core.unused) for part in _PARTS[side])
    places = (path for path, each in model.named_modules(remove_duplicate=False) if each is module)
    own = tuple(f"{path}.".lstrip(".") for path in places)
    everything = model.named_parameters(remove_duplicate=False)
    used = {id(p) for name, p in everything if not name.startswith(own)}
    return [
        name
        for name, p in module.named_parameters()
        if name.split(".")[0] in parts and p.requires_grad and id(p) not in used
    ]


def _exchanged(
    model: nn.Module, planned: Sequence[Planned], old: Mapping[str, Planned], data: Any
) -> list[Planned]:
    """Old cores out, new ones fitted and in; where fitting fails the old ones are put back."""
    for plan in old.values():
        _take(model, plan.site.module)
    try:
        fitted = [*planned] if data is None else _fitted(model, planned, data)
    except BaseException:
        for plan in old.values():
            place(model, plan)
        raise
    return [replace(plan, graft=place(model, plan)) for plan in fitted]


def _fitted(model: nn.Module, planned: Sequence[Planned], data: Any) -> list[Planned]:
    """The planned cores with weights from what the host's attention computes on data."""
    with evaluating(model), torch.no_grad(), reading(model, [plan.site for plan in planned]) as read:
        for batch in _batches(data):
            asked("graft", model, batch)
    return [_fit(plan, read.get(plan.site.path, [])) for plan in planned]


def _fit(plan: Planned, sides: Sequence[Sides]) -> Planned:
    if not sides:
        raise BadInput(f"graft: the attention at {plan.site.path!r} was not called with this data")
    fit = fit_primal(cast(PrimalCore, like(plan.core, plan.site.module)), sides)
    return replace(plan, graft=replace(plan.graft, fit=fit.record()))


def _batches(data: Any) -> Iterable[Any]:
    if isinstance(data, Tensor | Mapping | tuple):
        return [data]
    if not isinstance(data, Iterable):
        raise BadInput(
            f"graft: `data` is {data!r}, expected a tensor, a tuple, a mapping, or several of these"
        )
    return data
