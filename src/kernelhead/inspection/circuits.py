"""What heads do with words by themselves: which they look for and which they call for, beside a corpus."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn

from kernelhead.errors import BadInput, ShapeError, unknown
from kernelhead.inspection.cases import calls_of
from kernelhead.nn import Site
from kernelhead.rng import generator
from kernelhead.shapes import check_axes, check_size

MEASURES = ("spearman", "pearson", "cka")
CENTRES = ("row", "none")
# What families call the map from joined heads back to the width.
OUTPUTS = ("out", "out_proj", "proj", "o_proj", "c_proj", "dense")
# And the norm before the scores of words.
NORMS = ("final_norm", "ln_f", "norm", "final_layer_norm", "final_layernorm")

Unembed = Callable[[Tensor], Tensor]


@dataclass(frozen=True, eq=False)
class Circuits:
    """Both circuits of one attention between v words, each taken alone.

    Shapes: looks (h, v, v), row the word that asks and column the word that is seen, the scaled inner product
    of query and key; calls (h, v, v), row the word that is called for and column the word that is seen, or
    None where no scores of words were given.
    """

    path: str
    looks: Tensor
    calls: Tensor | None


@dataclass(frozen=True)
class Agreement:
    """How well a learned kernel agrees with a statistic, beside what agrees by chance.

    Attributes:
        value: of the measure.
        transposed: the same with the statistic's sides swapped; as large where direction says nothing.
        shuffled: mean over random permutations of the words of the statistic.
        spread: standard deviation over these.
        shuffles: how many there were.
    """

    value: float
    transposed: float
    shuffled: float
    spread: float
    shuffles: int

    def to_dict(self) -> dict[str, float]:
        """As JSON has it."""
        return asdict(self)


@dataclass(frozen=True, eq=False)
class PositionalTerms:
    """The four parts of scores between points that are a content plus a place; they add up to the scores.

    Shapes: each (... n m).

    Args:
        content_place: how much a content looks at a place.
        place_content: how much a place looks at a content.
    """

    content: Tensor
    content_place: Tensor
    place_content: Tensor
    place: Tensor

    def total(self) -> Tensor:
        """The scores themselves."""
        return self.content + self.content_place + self.place_content + self.place

    def shares(self) -> dict[str, float]:
        """The variance of each part within rows, over the sum of the four; what softmax can see of it."""
        sizes = {
            name: float((part - part.mean(-1, keepdim=True)).square().sum())
            for name, part in vars(self).items()
        }
        total = sum(sizes.values()) or 1.0
        return {name: size / total for name, size in sizes.items()}


def read_circuits(model: nn.Module, words: Tensor, *, unembed: Unembed | None = None) -> list[Circuits]:
    """The circuits of every softmax attention of a model, read from texts of one word each.

    A word alone sees itself only, so that what reaches an attention is made from this word and the first
    place. `looks` is what queries and keys make of two words; `calls` what the value of a seen word adds to
    the scores of all, each head by itself, biases left out.

    Args:
        model: takes tokens (b, n); in evaluation and without gradients here.
        words: tokens to read, (v,).
        unembed: linear, from features (... c) to scores of the words (... v); see `unembedding`.

    Raises:
        BadInput: words are not whole numbers (v,), no softmax attention is reached, or the output map of an
            attention is not known and `unembed` is given.

    Example:
        >>> from kernelhead.models import LanguageModel
        >>> model, words = LanguageModel(20, width=8, depth=1, heads=2), torch.arange(5)
        >>> read = read_circuits(model, words, unembed=unembedding(model, words))
        >>> read[0].path, read[0].looks.shape, read[0].calls.shape
        ('blocks.0.attention', torch.Size([2, 5, 5]), torch.Size([2, 5, 5]))
    """
    who = "read_circuits"
    if words.dim() != 1 or words.is_floating_point() or not len(words):
        raise BadInput(
            f"{who}: `words` is {words.dtype} of shape {tuple(words.shape)}, expected whole numbers (v,)"
        )
    found = []
    for read in calls_of(who, model, words[:, None]):
        if len(read.cases) != len(words):
            continue
        query, key, value = (
            torch.cat([getattr(case, side)[:, :, 0] for case in read.cases]).transpose(0, 1).float()
            for side in ("query", "key", "value")
        )  # (h, v, d)
        looks = query @ _repeated(key, len(query)).mT * read.cases[0].scale
        calls = None if unembed is None else _calls(read.site, _repeated(value, len(query)), unembed)
        found.append(Circuits(read.site.path, looks, calls))
    if not found:
        raise BadInput(f"{who}: {type(model).__name__} has no softmax attention that single words reach")
    return found


def unembedding(model: nn.Module, words: Tensor) -> Unembed:
    """How a language model turns features into scores of some words, as a linear map.

    The gain of a last norm belongs to it, and that it takes the mean out; its division does not: it is one
    number a text, and changes no order. The norm is looked for under the names that families give it
    (`NORMS`), in the model, in its base model and in the decoder of that.

    Raises:
        BadInput: the model has neither `get_output_embeddings` nor `head` nor `embedding`.

    Example:
        >>> from kernelhead.models import LanguageModel
        >>> model = LanguageModel(20, width=8, depth=1, heads=2)
        >>> unembedding(model, torch.arange(5))(torch.zeros(3, 8)).shape
        torch.Size([3, 5])
    """
    getter = getattr(model, "get_output_embeddings", None)
    parts = (
        [getter()] if getter is not None else [getattr(model, name, None) for name in ("head", "embedding")]
    )
    found = next((each for each in parts if isinstance(getattr(each, "weight", None), Tensor)), None)
    if found is None:
        raise BadInput(f"unembedding: {type(model).__name__} has no embeddings that score words")
    weight = found.weight.detach()[words].float()
    norm = _last_norm(model, weight.shape[-1])
    if norm is not None:
        gain, centred = _gain(norm, weight)
        weight = weight * gain
        if centred:
            weight = weight - weight.mean(-1, keepdim=True)
    return lambda features: features.float() @ weight.mT


def _last_norm(model: nn.Module, width: int) -> nn.Module | None:
    """The norm that features of a width pass before they are scored, where one is known by name."""
    base = getattr(model, "base_model", model)
    for holder in (model, base, getattr(base, "decoder", None)):
        for name in NORMS:
            found = getattr(holder, name, None)
            weight = getattr(found, "weight", None)
            plain = isinstance(found, nn.LayerNorm) and found.normalized_shape == (width,)
            if plain or (isinstance(weight, Tensor) and weight.shape == (width,)):
                return found
    return None


@torch.no_grad()
def _gain(norm: nn.Module, like: Tensor) -> tuple[Tensor, bool]:
    """By what a norm multiplies features, and whether it takes their mean out, seen from what it does."""
    if isinstance(norm, nn.LayerNorm):
        known = torch.ones_like(like[0]) if norm.weight is None else norm.weight.detach().float()
        return known, True
    weight: Any = norm.weight
    even = torch.ones(like.shape[-1], dtype=weight.dtype, device=weight.device)
    swung = torch.where(torch.arange(len(even), device=even.device) % 2 == 0, even, -even)

    def passed(points: Tensor) -> Tensor:
        """Without what is added to all points alike."""
        return (norm(points) - norm(-points)).float() / 2

    centred = bool(passed(even).abs().max() < 1e-3 * passed(swung).abs().max())
    points = (swung - swung.mean() if centred else swung).float()
    gain = passed(swung) / points * points.square().mean().sqrt()
    return gain.to(like.device), centred


def compare_kernels(
    learned: Tensor,
    statistic: Tensor,
    *,
    centre: str = "row",
    measure: str = "spearman",
    shuffles: int = 10,
    seed: int = 0,
) -> Agreement:
    """How well a learned kernel between words agrees with a statistic of a corpus, and chance beside it.

    Softmax does not see a shift of a row, so that rows are centred first.

    Shapes: learned, statistic (v, v), rows and columns the same words in the same roles.

    Args:
        centre: "row", or "none".
        measure: "spearman", the correlation of ranks over all entries; "pearson"; or "cka", the cosine of the
            centred matrices of inner products between rows.
        shuffles: random permutations of the statistic's words, rows and columns alike.
        seed: of these.

    Raises:
        ShapeError: the kernels are not (v, v), v of 2 or more.
        BadInput: an entry is not finite, or all entries of one are the same.
        UnknownName: no such centring or measure.

    Example:
        >>> statistic = torch.randn(30, 30, generator=torch.Generator().manual_seed(0))
        >>> found = compare_kernels(2 * statistic + 1, statistic)
        >>> round(found.value, 3), abs(found.transposed) < 0.2, abs(found.shuffled) < 0.1
        (1.0, True, True)
    """
    who = "compare_kernels"
    if measure not in MEASURES:
        raise unknown(who, "measure", measure, MEASURES)
    if centre not in CENTRES:
        raise unknown(who, "centring", centre, CENTRES)
    check_size(who, "shuffles", shuffles)
    if learned.shape != statistic.shape or learned.dim() != 2 or learned.shape[0] != learned.shape[1]:
        raise ShapeError(
            f"{who}: `learned` has shape {tuple(learned.shape)} and `statistic` {tuple(statistic.shape)}, "
            "expected (v, v) both"
        )
    for name, each in (("learned", learned), ("statistic", statistic)):
        if not bool(each.isfinite().all()):
            raise BadInput(f"{who}: `{name}` {tuple(each.shape)} holds NaN or infinity")
    mine = _prepared(who, "learned", learned.double(), centre, measure)

    theirs, swapped = (
        _prepared(who, "statistic", each, centre, measure)
        for each in (statistic.double(), statistic.double().mT)
    )
    draws = generator(seed)
    orders = [torch.randperm(len(mine), generator=draws).to(mine.device) for _ in range(shuffles)]
    # Ranks and centring move with the words, so that they need not be made again.
    chance = torch.stack([(mine * theirs[order][:, order]).sum() for order in orders])
    value, transposed = ((mine * each).sum() for each in (theirs, swapped))
    spread = float(chance.std(correction=0))
    return Agreement(float(value), float(transposed), float(chance.mean()), spread, shuffles)


def asymmetry_index(kernel: Tensor) -> float:
    r"""How far a kernel is from its transpose: $|B - B^\top| / |B + B^\top|$; 0 symmetric, about 1 random.

    Shapes: kernel (v, v).

    Raises:
        ShapeError: the kernel is not square.
        BadInput: an entry is not finite, or the kernel is zero.

    Example:
        >>> asymmetry_index(torch.eye(3)), round(asymmetry_index(torch.ones(3, 3).triu(1)), 3)
        (0.0, 1.0)
    """
    check_axes("asymmetry_index", kernel=(kernel, "v v"))
    kernel = kernel.double()
    if not bool(kernel.isfinite().all()) or not bool(kernel.any()):
        raise BadInput(f"asymmetry_index: the kernel {tuple(kernel.shape)} is zero, or holds NaN or infinity")
    even, odd = kernel + kernel.mT, kernel - kernel.mT
    return float(odd.norm() / even.norm()) if bool(even.any()) else float("inf")


def positional_terms(content: Tensor, place: Tensor, left: Tensor, right: Tensor) -> PositionalTerms:
    r"""Scores of points $q + p$ in four parts: $(q + p) L R^\top (q + p)^\top$ multiplied out.

    Shapes: content, place (... n c); left, right (c, d), the weights of queries and of keys.

    Args:
        content: what stands at each place, q.
        place: what the place itself adds, p.

    Raises:
        ShapeError: axes that must agree do not.

    Example:
        >>> x, p, weight = torch.randn(4, 3), torch.randn(4, 3), torch.eye(3)
        >>> terms = positional_terms(x, p, weight, weight)
        >>> torch.allclose(terms.total(), (x + p) @ (x + p).mT, atol=1e-5)
        True
    """
    check_axes(
        "positional_terms",
        content=(content, "... n c"),
        place=(place, "... n c"),
        left=(left, "c d"),
        right=(right, "c d"),
    )
    queries, keys = (content @ left, place @ left), (content @ right, place @ right)
    return PositionalTerms(*(query @ key.mT for query in queries for key in keys))


def circuit_record(
    read: Sequence[Circuits], statistics: dict[str, Tensor], *, shuffles: int = 10, seed: int = 0
) -> dict[str, Any]:
    """Every head of every attention beside every statistic, as JSON has it.

    Args:
        read: of `read_circuits`.
        statistics: kernels between the same words by name, row the later word and column the earlier one.
        shuffles: as in `compare_kernels`.
        seed: as there.

    Returns:
        All heads, each with its path, number, asymmetry, and the agreement of its circuits by statistic.

    Raises:
        ShapeError: a statistic does not fit.
        BadInput: a kernel or a statistic is not finite or is constant.

    Example:
        >>> kernel = torch.randn(1, 6, 6, generator=torch.Generator().manual_seed(0))
        >>> record = circuit_record([Circuits("a", kernel, None)], {"ppmi": kernel[0]}, shuffles=2)
        >>> record["heads"][0]["looks"]["ppmi"]["value"] > 0.99
        True
    """
    heads = []
    for each in read:
        for head, looks in enumerate(each.looks):
            sides = {"looks": looks, **({} if each.calls is None else {"calls": each.calls[head]})}
            heads.append(
                {
                    "path": each.path,
                    "head": head,
                    "asymmetry": {name: asymmetry_index(side) for name, side in sides.items()},
                    **{
                        name: {
                            title: compare_kernels(side, statistic, shuffles=shuffles, seed=seed).to_dict()
                            for title, statistic in statistics.items()
                        }
                        for name, side in sides.items()
                    },
                }
            )
    return {"heads": heads}


def _repeated(side: Tensor, heads: int) -> Tensor:
    """Keys and values for every head of queries, where several share theirs."""
    return side.repeat_interleave(heads // len(side), dim=0)


def _calls(site: Site, value: Tensor, unembed: Unembed) -> Tensor:
    """What each head's value of a word (h, v, d) adds to the scores of all words, (h, called, seen)."""
    found = next((each for name in OUTPUTS if (each := getattr(site.module, name, None)) is not None), None)
    if not isinstance(found, nn.Module):
        raise BadInput(
            f"read_circuits: the output map of {site.kind} at {site.path!r} is not known; leave `unembed` out"
        )
    heads, words, width = value.shape
    alone = value.new_zeros(heads, words, heads, width)
    alone[torch.arange(heads), :, torch.arange(heads)] = value
    with torch.no_grad():
        weight = next(found.parameters())
        joined = alone.flatten(2).to(weight.dtype)
        features = (found(joined) - found(torch.zeros_like(joined[:1, :1]))).float()
        return unembed(features).mT


def _prepared(who: str, name: str, kernel: Tensor, centre: str, measure: str) -> Tensor:
    """A matrix of length one whose inner product with another one is the measure."""
    if centre == "row":
        kernel = kernel - kernel.mean(-1, keepdim=True)
    if measure == "cka":
        kernel = kernel - kernel.mean(0)
        kernel = kernel @ kernel.mT
    flat = kernel.reshape(-1)
    if measure == "spearman":
        flat = _ranks(flat)
    flat = flat if measure == "cka" else flat - flat.mean()
    size = flat.norm()
    if not float(size) > 0:
        raise BadInput(f"{who}: all entries of `{name}` {tuple(kernel.shape)} are the same within their rows")
    return (flat / size).view_as(kernel)


def _ranks(values: Tensor) -> Tensor:
    """Places in the order of size, equal values sharing the mean of theirs."""
    _, inverse, counts = values.unique(return_inverse=True, return_counts=True)
    last = counts.cumsum(0).double()
    return (last - (counts.double() - 1) / 2)[inverse]
