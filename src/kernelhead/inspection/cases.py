"""Run a model on a batch and hand out what every attention got, case by case and without padding."""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from kernelhead.errors import BadInput, KernelheadError
from kernelhead.nn import Attended, evaluating, record
from kernelhead.nn.hosts import Sides, Site, called, core_of_graft, find_sites, reading
from kernelhead.nn.hosts.sides import lowest
from kernelhead.nn.hosts.watching import nothing_found

Batch: TypeAlias = Tensor | Sequence[Any] | Mapping[str, Any]

#: What a model says of inputs that are not for it; torch's own attention asserts.
_REFUSALS = (TypeError, ValueError, RuntimeError, LookupError, AttributeError, AssertionError)


@dataclass(frozen=True, eq=False)
class Calls:
    """What was read of one attention on one batch, all calls together.

    Attributes:
        site: the attention.
        cases: what a softmax core got, one case each and real points only.
        recorded: what any other attention of kernelhead did, call by call; empty where `cases` is not.
    """

    site: Site
    cases: list[Sides]
    recorded: list[Attended]


def calls_of(who: str, model: nn.Module, batch: Batch, mask: Tensor | None = None) -> list[Calls]:
    """Call a model once, in evaluation and without gradients, and read all attentions that it reached.

    Args:
        who: name of the function that complains.
        batch: called as ``model(batch)``, ``model(*batch)`` or ``model(**batch)``.
        mask: a second argument of the model beside a tensor, (b, n), True where real.

    Raises:
        BadInput: the model has no attention that can be read, cannot take the batch, or the batch
            reaches no attention.

    Example:
        >>> read = calls_of("f", nn.TransformerEncoderLayer(8, 2, batch_first=True), torch.zeros(3, 5, 8))
        >>> read[0].site.path, len(read[0].cases), read[0].cases[0].query.shape
        ('self_attn', 3, torch.Size([1, 2, 5, 4]))
    """
    sites = find_sites(model)
    ours = {site.path: site for site in sites if _recorded(site)}
    softmax = [site for site in sites if site.readable and site.path not in ours]
    if not ours and not softmax:
        raise nothing_found(who, model)
    with ExitStack() as stack:
        stack.enter_context(evaluating(model))
        stack.enter_context(torch.no_grad())
        tapes = {
            path: stack.enter_context(record(core_of_graft(site.module) or site.module, patterns=True))
            for path, site in ours.items()
        }
        sides = stack.enter_context(reading(model, softmax)) if softmax else {}
        _call(who, model, batch, mask)
    found = []
    for site in sites:
        if site.path in tapes:
            found.append(Calls(site, [], tapes[site.path].calls[""]))
        elif site.path in sides:
            cases = [case for call in sides[site.path] for case in real_cases(call, cross=site.cross)]
            found.append(Calls(site, cases, []))
    found = [each for each in found if each.cases or each.recorded]
    if not found:
        paths = [site.path for site in sites]
        raise BadInput(f"{who}: {_described(batch)} reaches none of the attentions of the model, {paths}")
    return found


def real_cases(sides: Sides, *, cross: bool = False) -> list[Sides]:
    """The cases of a call one by one, without the points that are padded; empty cases are left out.

    A key is padded where no query may see it. A point of a sequence that attends to itself is padded
    where its key is; across two sequences all queries count.

    Args:
        cross: whether queries and keys are different points.

    Returns:
        Sides of one case each, b = 1, without mask.

    Example:
        >>> x = torch.zeros(2, 1, 3, 4)
        >>> mask = torch.tensor([[True, True, False], [False, False, False]])
        >>> [case.query.shape for case in real_cases(Sides(x, x, x, mask, False, 0.5))]
        [torch.Size([1, 1, 2, 4])]
    """
    (b, _, n, _), m = sides.query.shape, sides.key.shape[-2]
    real = torch.ones(b, m, dtype=torch.bool, device=sides.key.device) if sides.mask is None else sides.mask
    bias = sides.bias
    if bias is not None:
        bias = bias.reshape((1,) * (4 - bias.dim()) + bias.shape)
        bias = bias.expand(b, bias.shape[1], n, m)
        real = real & (bias > lowest(bias)).flatten(1, 2).any(1)
    own = not cross and (n == m or (sides.causal and n < m))
    found = []
    for case, keys in enumerate(real):
        queries = keys[m - n :] if own else keys.new_ones(n)
        if not (queries.any() and keys.any()):
            continue
        query, key, value = (side[case : case + 1] for side in (sides.query, sides.key, sides.value))
        found.append(
            Sides(
                query[:, :, queries],
                key[:, :, keys],
                value[:, :, keys],
                None,
                sides.causal,
                sides.scale,
                None if bias is None else bias[case : case + 1, :, queries][..., keys],
            )
        )
    return found


def _recorded(site: Site) -> bool:
    """Whether a tape tells what it did and a softmax of its sides would not: ours but softmax, and grafts."""
    return core_of_graft(site.module) is not None or (site.family == "kernelhead" and not site.readable)


def _call(who: str, model: nn.Module, batch: Batch, mask: Tensor | None) -> None:
    if isinstance(batch, str | bytes) or not isinstance(batch, Tensor | Mapping | Sequence):
        raise BadInput(
            f"{who}: the batch is of type {type(batch).__name__}, expected a tensor, a sequence or a mapping"
        )
    if mask is not None and not isinstance(batch, Tensor):
        raise BadInput(f"{who}: a mask goes beside a tensor, but the batch is {_described(batch)}")
    try:
        called(model, batch) if mask is None else model(batch, mask)
    except (KernelheadError, torch.OutOfMemoryError):
        raise
    except _REFUSALS as error:
        said = f"{type(error).__name__}: {error}"
        raise BadInput(f"{who}: {type(model).__name__} cannot take {_described(batch)}: {said}") from error


def _described(batch: Batch) -> str:
    """A batch in words: shapes of tensors, types of what is none."""
    if isinstance(batch, Tensor):
        return f"a tensor {tuple(batch.shape)} of {batch.dtype}"
    if isinstance(batch, Mapping):
        parts = [f"{name}: {_short(each)}" for name, each in batch.items()]
    else:
        parts = [_short(each) for each in batch]
    return f"a {type(batch).__name__} of {', '.join(parts) or 'nothing'}"


def _short(part: object) -> str:
    return str(tuple(part.shape)) if isinstance(part, Tensor) else type(part).__name__
