"""Run a model on a batch and hand out what every attention got, case by case and without padding."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from kernelhead.errors import BadInput
from kernelhead.nn import Attended, evaluating, record
from kernelhead.nn.hosts import Sides, Site, core_of_graft, find_sites, reading
from kernelhead.nn.hosts.sides import lowest
from kernelhead.nn.hosts.watching import asked, described, nothing_found
from kernelhead.nn.softmax import without_padding

Batch: TypeAlias = Tensor | Sequence[Any] | Mapping[str, Any]


@dataclass(frozen=True, eq=False)
class Calls:
    """What was read of one attention on one batch, all calls together.

    Attributes:
        site: the attention.
        cases: what a softmax core got, one case each and real points only; cases without any are left out.
        recorded: what any other attention of kernelhead did, call by call; empty where `cases` is not.
        numbers: which case of the batch each of `cases` is, later calls counted on.
        count: how many cases the batch has, those without a real point too.
    """

    site: Site
    cases: list[Sides]
    recorded: list[Attended]
    numbers: list[int] = field(default_factory=list)
    count: int = 0

    def case(self, who: str, number: int) -> Sides:
        """What a softmax core got for a case of the batch.

        Raises:
            BadInput: there is no such case, or it has no real point.
        """
        if not 0 <= number < self.count:
            raise BadInput(f"{who}: case is {number}, expected one of {self.count} at {self.site.path!r}")
        if number not in self.numbers:
            raise no_point(who, number, self.site.path)
        return self.cases[self.numbers.index(number)]


def no_point(who: str, case: int, path: str) -> BadInput:
    """What is said of a case that a mask hides."""
    return BadInput(f"{who}: case {case} at {path!r} has no real point")


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
        read = [*softmax, *(site for site in ours.values() if core_of_graft(site.module) is not None)]
        sides = stack.enter_context(reading(model, read)) if read else {}
        asked(who, model, batch, mask)
    found = []
    for site in sites:
        if site.path in tapes:
            recorded = tapes[site.path].calls[""]
            if site.path in sides and not site.cross:
                recorded = [*map(_of_real_queries, recorded, sides[site.path])]
            found.append(Calls(site, [], recorded))
        elif site.path in sides:
            cases, numbers, count = [], [], 0
            for call in sides[site.path]:
                for number, case in _numbered(call, site.cross):
                    cases.append(case)
                    numbers.append(count + number)
                count += len(call.query)
            found.append(Calls(site, cases, [], numbers, count))
    found = [each for each in found if each.cases or each.recorded]
    if not found:
        paths = [site.path for site in sites]
        raise BadInput(f"{who}: {described(batch)} reaches none of the attentions of the model, {paths}")
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
    return [case for _, case in _numbered(sides, cross)]


def _numbered(sides: Sides, cross: bool) -> Iterator[tuple[int, Sides]]:
    """The cases with a real point, each with its number in the call."""
    (b, _, n, _), m = sides.query.shape, sides.key.shape[-2]
    real = torch.ones(b, m, dtype=torch.bool, device=sides.key.device) if sides.mask is None else sides.mask
    bias = sides.bias
    if bias is not None:
        bias = bias.reshape((1,) * (4 - bias.dim()) + bias.shape)
        bias = bias.expand(b, bias.shape[1], n, m)
        real = real & (bias > lowest(bias)).flatten(1, 2).any(1)
    own = not cross and (n == m or (sides.causal and n < m))
    for case, keys in enumerate(real):
        queries = keys[m - n :] if own else keys.new_ones(n)
        if not (queries.any() and keys.any()):
            continue
        query, key, value = (side[case : case + 1] for side in (sides.query, sides.key, sides.value))
        yield (
            case,
            Sides(
                query[:, :, queries],
                key[:, :, keys],
                value[:, :, keys],
                None,
                sides.causal,
                sides.scale,
                None if bias is None else bias[case : case + 1, :, queries][..., keys],
            ),
        )


def _of_real_queries(call: Attended, given: Sides) -> Attended:
    """What a grafted core did, without its rows for padded points: some cores do not know whose they are."""
    n, m = given.query.shape[-2], given.key.shape[-2]
    if call.pattern is None or given.mask is None or not (n == m or given.causal):
        return call
    return replace(call, pattern=without_padding(call.pattern, given.mask[:, m - n :]))


def _recorded(site: Site) -> bool:
    """Whether a tape tells what it did and a softmax of its sides would not: ours but softmax, and grafts."""
    return core_of_graft(site.module) is not None or (site.family == "kernelhead" and not site.readable)
