"""How much of what points read comes from which group of points: attention rolled out over layers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor, nn

from kernelhead.errors import BadInput, ShapeError, unknown
from kernelhead.inspection.cases import Batch
from kernelhead.inspection.rollout import (
    check_residual,
    entries_of,
    mixed_heads,
    numbered,
    real_points,
    rolled_out,
    with_residual,
)
from kernelhead.nn import evaluating, record
from kernelhead.nn.hosts.watching import asked
from kernelhead.pattern import Pattern

Group: TypeAlias = slice | Sequence[int] | Tensor


@dataclass(frozen=True, eq=False)
class Flow:
    """Where what a group of points reads comes from; row: who reads, column: from whom.

    Every row of every matrix sums to 1. Numbers are means over cases.

    Shapes: single, cumulative, single_uniform, uniform, regrouped (l, g, g); outside (l, g); micro (l,);
    sizes (g,).

    Attributes:
        names: of the groups.
        paths: of the layers.
        cases: that were read.
        skipped: cases in which a group has no real point.
        points: of a case, padded ones included.
        sizes: points of each group.
        single: of each layer by itself.
        cumulative: from the first layer up to each.
        single_uniform: what uniform attention would have in the place of `single`.
        uniform: what uniform attention would have in the place of `cumulative`.
        regrouped: the mean of `cumulative` over all ways to give the same points to groups of the same
            sizes, exactly: what does not come from the groups being those.
        outside: share that came from points of no group, such as special ones, which all else leaves out.
        micro: `cumulative` between different groups over all of it, each point with the same weight.

    Example:
        >>> cross = torch.tensor([[0.0, 1.0], [1.0, 0.0]])
        >>> read = inter_modality_flow([cross, cross], {"words": [0], "image": [1]})
        >>> read.cumulative[1], float(read.imf[1]), float(read.relative[1, 0, 1])
        (tensor([[0.5000, 0.5000],
                [0.5000, 0.5000]], dtype=torch.float64), 0.5, 1.3333333333333333)
    """

    names: tuple[str, ...]
    paths: tuple[str, ...]
    cases: int
    skipped: int
    points: int
    sizes: Tensor
    single: Tensor
    cumulative: Tensor
    single_uniform: Tensor
    uniform: Tensor
    regrouped: Tensor
    outside: Tensor
    micro: Tensor

    @property
    def imf(self) -> Tensor:
        """Inter-modality flow up to each layer, (l,): what comes from other groups, mean over groups."""
        return _crossing(self.cumulative)

    @property
    def relative(self) -> Tensor:
        """`cumulative` over what uniform attention has, (l, g, g); NaN where that has none."""
        return torch.where(self.uniform > 0, self.cumulative / self.uniform, torch.nan)

    @property
    def relative_imf(self) -> Tensor:
        """`imf` over that of uniform attention, (l,)."""
        return self.imf / _crossing(self.uniform)

    def between(self, reader: str, source: str) -> float:
        """What a group has read from another by the last layer.

        Raises:
            UnknownName: there is no such group.
        """
        for name in (reader, source):
            if name not in self.names:
                raise unknown("Flow", "group", name, self.names)
        return float(self.cumulative[-1, self.names.index(reader), self.names.index(source)])


def inter_modality_flow(
    attentions: Sequence[Tensor | Pattern],
    groups: Mapping[str, Group],
    *,
    residual: float = 0.5,
    rows: str = "stochastic",
    mask: Tensor | None = None,
    causal: bool | None = None,
    paths: Sequence[str] | None = None,
) -> Flow:
    r"""How much each group of points reads from each, layer by layer and cumulated.

    $F_{g \leftarrow h}$ is the mean over the points of g of what they take from those of h in the rollout;
    see `attention_rollout`. Points of no group, such as special ones, pass on what they read, but what is
    theirs is left out of a row before it is averaged, and `outside` says how much that was. Compare
    only flows of the same depth and residual, or relative ones: raw flow grows with depth even where
    attention is uniform.

    Shapes: attentions (b, h, n, n) or (n, n) each, first layer first; mask (b, n), True where real.

    Args:
        groups: two or more, by name: a slice, positions, or True where a point belongs to it, (n,) or (b, n).
            A point is in one group at most. Padded points count in none.
        residual: the share that a point keeps in every layer.
        rows: "stochastic" or "absolute"; see `attention_rollout`.
        mask: True where a point is real; all of them if None.
        causal: whether uniform attention, which flows are held against, sees a point and those before it
            only; if None, where no row of a layer has an entry after its own point.
        paths: names of the layers; their numbers if None.

    Raises:
        BadInput: a group is empty, outside of the points or shares one with another, there are fewer than
            two, or as `attention_rollout`.
        ShapeError: attentions are of different or other shapes.
        UnknownName: no such rows.

    Example:
        >>> even = torch.full((5, 5), 0.2)
        >>> read = inter_modality_flow([even] * 3, {"words": slice(0, 2), "image": slice(2, None)})
        >>> [round(float(each), 4) for each in (read.imf[-1], read.relative_imf[-1])]
        [0.4375, 1.0]
        >>> round(read.between("image", "words"), 4)
        0.35
    """
    who = "inter_modality_flow"
    paths = numbered(attentions) if paths is None else paths
    entries = entries_of(who, attentions, paths)
    real = real_points(who, mask, entries[0])
    return _flow(who, entries, paths, groups, real, residual=residual, rows=rows, causal=causal)


def model_flow(
    model: nn.Module,
    batch: Batch,
    groups: Mapping[str, Group],
    mask: Tensor | None = None,
    *,
    under: str = "",
    residual: float = 0.5,
    rows: str = "stochastic",
    causal: bool | None = None,
) -> Flow:
    """The flow between groups of points in any model whose attention can be recorded.

    The model runs once, in evaluation and without gradients. Layers are taken in the order of its modules, a
    module that is called several times as several layers. Padded points are those that no point looks at in
    any layer. Of a primal layer the pattern that it learned is read, which asks for ``rows="absolute"``.

    Args:
        model: called as ``model(batch)``, ``model(*batch)`` or ``model(**batch)``, or as
            ``model(batch, mask)`` with a mask.
        batch: a tensor, several in order, or by name.
        groups: of points as attention has them, so that a special point in front counts.
        mask: (b, n), True where real.
        under: path of the part of the model to read, such as that of its fusion; all of it if empty.
        residual, rows, causal: as for `inter_modality_flow`.

    Raises:
        BadInput: there is nothing to read at that path, the model cannot take the batch, or as
            `inter_modality_flow`.
        ShapeError: layers are not of the same points; `under` chooses some.
        UnknownName: no such rows.

    Example:
        >>> from kernelhead.rng import seeded
        >>> with seeded(0):
        ...     host = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 2)
        >>> read = model_flow(host, torch.ones(3, 6, 8), {"first": slice(0, 2), "second": slice(2, 6)})
        >>> read.paths, round(float(read.relative_imf[-1]), 3)
        (('layers.0.self_attn', 'layers.1.self_attn'), 1.0)
    """
    who = "model_flow"
    with evaluating(model), torch.no_grad(), record(model, patterns=True) as tape:
        asked(who, model, batch, mask)
    called = [(path, call.pattern) for path, calls in tape.calls.items() for call in calls]
    chosen = [each for each in called if not under or f"{each[0]}.".startswith(f"{under}.")]
    if not chosen:
        raise BadInput(f"{who}: no attention was called under {under!r}; called: {[*dict(called)]}")
    paths = [path for path, _ in chosen]
    patterns = [pattern for _, pattern in chosen if pattern is not None]
    if len(patterns) < len(chosen):
        raise BadInput(f"{who}: of {paths} only {len(patterns)} recorded a pattern")
    entries = entries_of(who, patterns, paths)
    real = torch.stack([(each != 0).any(dim=(1, 2)) for each in entries]).any(0)
    return _flow(who, entries, paths, groups, real, residual=residual, rows=rows, causal=causal)


def flow_record(found: Flow) -> dict[str, Any]:
    """What was found as a JSON record, a table for each layer; None where there is nothing to divide by.

    Example:
        >>> even = torch.full((4, 4), 0.25)
        >>> made = flow_record(inter_modality_flow([even], {"a": [0], "b": [1, 2, 3]}))
        >>> made["groups"], made["layers"][0]["path"], made["layers"][0]["relative_imf"]
        ({'a': 1.0, 'b': 3.0}, '0', 1.0)
    """
    single, total = _crossing(found.single), _crossing(found.single_uniform)
    layers = [
        {
            "path": path,
            "imf": float(found.imf[layer]),
            "uniform_imf": float(_crossing(found.uniform)[layer]),
            "relative_imf": _number(found.relative_imf[layer]),
            "single_imf": float(single[layer]),
            "single_uniform_imf": float(total[layer]),
            "micro": float(found.micro[layer]),
            "single": found.single[layer].tolist(),
            "cumulative": found.cumulative[layer].tolist(),
            "uniform": found.uniform[layer].tolist(),
            "regrouped": found.regrouped[layer].tolist(),
            "relative": [[_number(each) for each in row] for row in found.relative[layer]],
            "outside": found.outside[layer].tolist(),
        }
        for layer, path in enumerate(found.paths)
    ]
    groups = dict(zip(found.names, found.sizes.tolist(), strict=True))
    counts = {"cases": found.cases, "skipped": found.skipped, "length": found.points}
    return {"layers": layers, "groups": groups, **counts}


def named_groups(given: Sequence[str]) -> dict[str, Group]:
    """Groups from words such as ``first=0:16``, ``rest=16:`` and ``front=0``.

    Args:
        given: the words, one a group.

    Raises:
        BadInput: a word is not of this kind, or a name comes twice.

    Example:
        >>> named_groups(["first=0:16", "rest=16:"])
        {'first': slice(0, 16, None), 'rest': slice(16, None, None)}
    """
    groups: dict[str, Group] = {}
    for word in given:
        name, _, span = word.partition("=")
        ends = span.split(":")
        whole = all(end.strip().isdecimal() or (not end.strip() and len(ends) == 2) for end in ends)
        if not name or not whole or len(ends) > 2:
            raise BadInput(f"named_groups: {word!r} is not a group, expected NAME=START:STOP or NAME=PLACE")
        if name in groups:
            raise BadInput(f"named_groups: {name!r} is named twice")
        first, *last = (int(end) if end.strip() else None for end in ends)
        groups[name] = slice(first, last[0]) if last else [first or 0]
    return groups


class _Read(NamedTuple):
    """The flow of one rollout, case by case: (b, g, g) twice, (b, g), (b,)."""

    matrix: Tensor
    regrouped: Tensor
    outside: Tensor
    micro: Tensor


def _flow(
    who: str,
    entries: Sequence[Tensor],
    paths: Sequence[str],
    groups: Mapping[str, Group],
    real: Tensor,
    *,
    residual: float,
    rows: str,
    causal: bool | None,
) -> Flow:
    share = check_residual(who, residual)
    members = _members(who, groups, real)  # (b, g, n)
    whole = members.any(-1).all(-1)  # (b,)
    if not whole.any():
        missing = (~members.any(-1)).sum(0).tolist()
        counts = ", ".join(f"{name!r} in {n}" for name, n in zip(groups, missing, strict=True) if n)
        raise BadInput(f"{who}: no case has a real point in every group; of {len(real)} {counts} have none")
    entries = [each[whole] for each in entries]
    members, real = members[whole].double(), real[whole]
    layers = mixed_heads(who, entries, paths, rows, real)
    even = [_even(each, real, causal) for each in entries]
    alone = [_read(who, with_residual(each, share), members) for each in layers]
    summed = [_read(who, each, members) for each in rolled_out(layers, share)]
    even_alone = [_read(who, with_residual(each, share), members) for each in even]
    even_summed = [_read(who, each, members) for each in rolled_out(even, share)]
    return Flow(
        tuple(groups),
        tuple(paths),
        len(real),
        len(whole) - len(real),
        real.shape[-1],
        members.sum(-1).mean(0),
        torch.stack([each.matrix.mean(0) for each in alone]),
        torch.stack([each.matrix.mean(0) for each in summed]),
        torch.stack([each.matrix.mean(0) for each in even_alone]),
        torch.stack([each.matrix.mean(0) for each in even_summed]),
        torch.stack([each.regrouped.mean(0) for each in summed]),
        torch.stack([each.outside.mean(0) for each in summed]),
        torch.stack([each.micro.mean() for each in summed]),
    )


def _read(who: str, rolled: Tensor, members: Tensor) -> _Read:
    """The flow between groups in a rollout (b, n, n), with members (b, g, n), 1 where a point belongs."""
    counted, sizes = members.sum(1), members.sum(-1)  # (b, n), (b, g)
    inside = (rolled * counted[:, None]).sum(-1)
    if ((inside <= 0) & (counted > 0)).any():
        raise BadInput(f"{who}: a point reads from points of no group alone; keep a residual above 0")
    shares = rolled * (counted[:, None] * (counted / inside.clamp_min(1e-300))[..., None])  # (b, n, n)
    matrix = members @ shares @ members.mT / sizes[..., None]
    number = counted.sum(-1)
    # Between two different points, in the mean over all pairs.
    apart = (number - shares.diagonal(dim1=1, dim2=2).sum(-1)) / (number * (number - 1))
    others = apart[:, None, None] * sizes[:, None].expand_as(matrix)
    others = others - torch.diag_embed(others.diagonal(dim1=1, dim2=2))
    regrouped = others + torch.diag_embed(1 - others.sum(-1))
    outside = (members @ (1 - inside).clamp_min(0)[..., None]).squeeze(-1) / sizes
    own = (matrix.diagonal(dim1=1, dim2=2) * sizes).sum(-1) / number
    return _Read(matrix, regrouped, outside, 1 - own)


def _even(entries: Tensor, real: Tensor, causal: bool | None) -> Tensor:
    """Uniform attention over the real points that a point may see, (b, n, n)."""
    n = real.shape[-1]
    if causal is None:
        causal = n > 1 and not (entries.triu(1) != 0).any()
    seen = torch.ones(n, n, dtype=torch.float64, device=real.device)
    seen = (seen.tril() if causal else seen) * real[:, None]
    own = torch.eye(n, dtype=torch.float64, device=real.device)
    return torch.where(real[..., None], seen / seen.sum(-1, keepdim=True).clamp_min(1), own)


def _members(who: str, groups: Mapping[str, Group], real: Tensor) -> Tensor:
    """Who belongs to which group, (b, g, n); padded points to none."""
    if len(groups) < 2:
        raise BadInput(f"{who}: {len(groups)} groups are given, expected two or more: {[*groups]}")
    found = {name: _places(who, name, group, real) for name, group in groups.items()}
    taken: dict[str, Tensor] = {}
    for name, group in found.items():
        for other, before in taken.items():
            if (both := (group & before)).any():
                place = int(both.nonzero()[0, 1])
                raise BadInput(f"{who}: point {place} is in group {other!r} and in group {name!r}")
        taken[name] = group
    return torch.stack([*found.values()], dim=1) & real[:, None]


def _places(who: str, name: str, group: Group, real: Tensor) -> Tensor:
    """True where a point is in a group, (b, n), padded ones as well."""
    cases, n = real.shape
    place = torch.arange(n)[group] if isinstance(group, slice) else torch.as_tensor(group)
    place = place.to(real.device)
    if not place.numel() or (place.dtype == torch.bool and not place.any()):
        raise BadInput(f"{who}: group {name!r} is empty, expected points from 0 to {n - 1}")
    if place.dtype == torch.bool:
        if place.shape not in ((n,), (cases, n)):
            raise ShapeError(
                f"{who}: group {name!r} has shape {tuple(place.shape)}, expected ({n},) or ({cases}, {n})"
            )
        return place.expand(cases, n)
    if place.dim() != 1 or place.is_floating_point() or not 0 <= place.min() <= place.max() < n:
        raise BadInput(f"{who}: group {name!r} holds {place.tolist()}, expected places from 0 to {n - 1}")
    return torch.zeros(n, dtype=torch.bool, device=real.device).index_fill(0, place, True).expand(cases, n)


def _crossing(matrix: Tensor) -> Tensor:
    """What comes from other groups, mean over groups: (l, g, g) to (l,)."""
    return 1 - matrix.diagonal(dim1=1, dim2=2).mean(-1)


def _number(value: Tensor) -> float | None:
    return float(value) if torch.isfinite(value) else None
