"""How strongly a network couples two sides of its inputs: exact ranks of polynomials, spectra of others."""

from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from kernelhead.decomposition.fields import PRIME, check_prime, field_product, field_rank, to_field
from kernelhead.errors import BadInput
from kernelhead.inspection.spectrum import effective_rank
from kernelhead.nn import PolynomialAttention, evaluating, merge_heads, split_heads
from kernelhead.ops import generic_rank
from kernelhead.ops.eager.polynomial import polynomial_attention
from kernelhead.rng import generator
from kernelhead.shapes import check_size

SPARE = 8  # samples beyond the rank of one point against another
MOST = 1024  # samples of a side that are tried where none are asked for
ENTRIES = 2**20  # numbers of a batch of networks in the field

Readout = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class SeparationRank:
    """The rank of a polynomial network between two sides of its inputs.

    Attributes:
        rank: of the outputs on all pairs of samples, without rounding.
        samples: of each side.
        complete: whether more samples would not raise the rank: it is below their number.
        prime: modulo which it was computed; the rank over the rationals is this or, by a chance of the order
            of the degree over the prime, a larger one.
    """

    rank: int
    samples: int
    complete: bool
    prime: int


def separation_rank(
    layers: nn.Module,
    *,
    left: int = 1,
    right: int = 1,
    samples: int | None = None,
    prime: int = PRIME,
    seed: int = 0,
) -> SeparationRank:
    r"""The separation rank of polynomial attentions in a row, with the weights that they have, exactly.

    The smallest R with $f(a, b) = \sum_{r \le R} g_r(a) g'_r(b)$, where a and b are the points of both sides
    and f is the first feature of the first point. It is the rank of the kernel between both sides, taken at
    random points. Weights are stored as whole numbers times powers of two, and so are elements of a prime
    field: no rounding is made, which a polynomial of degree $3^L$ would not forgive.

    Points have no places in such a network. So nothing but how many there are on each side counts, and which
    side is read out, the left one here.

    Args:
        layers: a `PolynomialAttention`, or an nn.Sequential or nn.ModuleList of such, in order.
        left: points of the side that is read out.
        right: points of the other side.
        samples: of each side; by default as many as it takes, 1,024 at most.
        prime: modulo which all is computed; odd, below 2^26.
        seed: of the samples.

    Raises:
        BadInput: a layer is something else, layers are of different widths, or a number is out of range.

    Example:
        >>> layers = nn.Sequential(*(PolynomialAttention(3, heads=1) for _ in range(2)))
        >>> separation_rank(layers)
        SeparationRank(rank=35, samples=43, complete=True, prime=2097143)
        >>> separation_rank(layers, left=2, right=2).rank
        49
    """
    who = "separation_rank"
    stack = _stack(who, layers)
    for name, size in {"left": left, "right": right}.items():
        check_size(who, name, size)
    check_prime(who, prime)
    if samples is None:
        count, most = min(generic_rank(len(stack), stack[0].width) + SPARE, MOST), MOST
    else:
        count = most = check_size(who, "samples", samples)
    draws = generator(check_size(who, "seed", seed, least=0))
    weights = [_weights(layer, prime) for layer in stack]
    while True:
        sides = [
            torch.randint(prime, (count, points, stack[0].width), generator=draws).double()
            for points in (left, right)
        ]
        rank = field_rank(_pairs(sides[0], sides[1], weights, prime), prime)
        if rank < count or count >= most:
            return SeparationRank(rank, count, rank < count, prime)
        count = min(2 * count, most)


@dataclass(frozen=True)
class SeparationReading:
    """How a function of two sides is spread over products of functions of one; means over outputs.

    Attributes:
        effective_rank: of the matrix of outputs, left samples by right ones.
        stable_rank: its squares over the largest squared singular value.
        numerical_rank: singular values above rounding.
        interaction: share of its variance that no sum of a function of each side has; 0 for such a sum.
        interaction_rank: effective rank of that part alone; 0 where there is none.
    """

    effective_rank: float
    stable_rank: float
    numerical_rank: float
    interaction: float
    interaction_rank: float


@dataclass(frozen=True)
class SeparationSpectrum:
    """What `separation_spectrum` found, with what it would find where there is nothing.

    Attributes:
        left: samples of the left side.
        right: samples of the right side.
        outputs: that were read.
        values: singular values over their sum, largest first, mean over outputs.
        found: of the model.
        nulls: the same for "independent", its outputs in a random order, for "shuffled weights", the model
            with the entries of each weight in a random order, and for "untrained", where one was given.
    """

    left: int
    right: int
    outputs: int
    values: tuple[float, ...]
    found: SeparationReading
    nulls: dict[str, SeparationReading]


def separation_spectrum(
    model: nn.Module,
    left: Tensor,
    right: Tensor,
    *,
    places: Sequence[int] | None = None,
    readout: Readout | None = None,
    untrained: nn.Module | None = None,
    batch: int = 256,
    seed: int = 0,
) -> SeparationSpectrum:
    """Singular values of a network's outputs over all pairs of a left and a right part of its input.

    With softmax the function has no finite separation rank, and only how fast the values fall means
    something. It depends on the samples: there are at most as many values as samples of a side. A rank says
    how many products a function takes and nothing about how good it is; read it beside its nulls.

    Shapes: left (r, n, ...) and right (s, m, ...), parts of r and s inputs; the model is called with
    (cases, n + m, ...).

    Args:
        model: any module that takes one tensor.
        left: left parts, tokens or features of points.
        right: right parts.
        places: where the left points stand in a whole input; first by default.
        readout: from the model's output of a batch to numbers (cases, k) that are read one by one; by default
            those of the last point, or of the case where there are no points, at most 32 at even distances.
        untrained: a model of the same kind with the weights it started from, as a further null.
        batch: cases of a call.
        seed: of the random orders.

    Raises:
        BadInput: parts do not fit, places are not such, or outputs are not finite numbers (cases, k).

    Example:
        >>> from kernelhead.rng import seeded
        >>> with seeded(0):
        ...     model, (left, right) = PolynomialAttention(4, heads=1), torch.randn(2, 16, 1, 4)
        >>> separation_spectrum(model, left, right).found.numerical_rank  # 4 + 1
        5.0
    """
    order = _order("separation_spectrum", left, right, places)
    check_size("separation_spectrum", "batch", batch)
    draws = generator(check_size("separation_spectrum", "seed", seed, least=0))

    def matrices(network: nn.Module) -> Tensor:
        return _outputs(network, left, right, order, readout or _last_point, batch)

    made = matrices(model)  # (k, r, s)
    mixed = torch.stack([_permuted(each.flatten(), draws).view_as(each) for each in made])
    shuffled = deepcopy(model)
    with torch.no_grad():
        for weight in shuffled.parameters():
            weight.copy_(_permuted(weight.flatten(), draws).view_as(weight))
    nulls = {
        "independent": _reading(mixed),
        "shuffled weights": _reading(matrices(shuffled)),
    }
    if untrained is not None:
        nulls["untrained"] = _reading(matrices(untrained))
    values = torch.linalg.svdvals(made.double())
    shares = values / values.sum(-1, keepdim=True).clamp_min(torch.finfo(values.dtype).tiny)
    return SeparationSpectrum(
        len(left), len(right), len(made), tuple(shares.mean(0).tolist()), _reading(made), nulls
    )


def separation_record(found: SeparationRank | SeparationSpectrum) -> dict[str, Any]:
    """What was found as a JSON record.

    Example:
        >>> separation_record(SeparationRank(3, 11, True, 32749))["rank"]
        3
    """
    return asdict(found)


def _stack(who: str, layers: nn.Module) -> list[PolynomialAttention]:
    stack = [*_layers(layers)]
    others = [type(each).__name__ for each in stack if not isinstance(each, PolynomialAttention)]
    found = [each for each in stack if isinstance(each, PolynomialAttention)]
    widths = {layer.width for layer in found}
    if others or len(widths) != 1:
        raise BadInput(
            f"{who}: `layers` holds {len(found)} PolynomialAttention of widths {sorted(widths)} and also "
            f"{others}; expected one or more of one width and nothing else"
        )
    return found


def _layers(layers: nn.Module) -> Iterator[nn.Module]:
    if isinstance(layers, nn.Sequential | nn.ModuleList):
        for each in layers:
            yield from _layers(each)
    else:
        yield layers


def _weights(layer: PolynomialAttention, prime: int) -> tuple[int, list[Tensor]]:
    projections = (layer.query, layer.key, layer.value, layer.out)
    return layer.heads, [to_field(each.weight.cpu(), prime).mT for each in projections]


def _pairs(left: Tensor, right: Tensor, weights: list[tuple[int, list[Tensor]]], prime: int) -> Tensor:
    """The first feature of the first point for all pairs of samples, (r, s)."""
    product = partial(field_product, prime=prime)
    size = (left.shape[1] + right.shape[1]) * left.shape[2] * len(right)
    made = []
    for some in left.split(max(ENTRIES // size, 1)):
        x = torch.cat(
            [
                some[:, None].expand(-1, len(right), -1, -1),
                right[None].expand(len(some), -1, -1, -1),
            ],
            dim=2,
        ).flatten(0, 1)
        for heads, (query, key, value, out) in weights:
            sides = [split_heads(product(x, weight), heads) for weight in (query, key, value)]
            mixed = polynomial_attention(sides[0], sides[1], sides[2], product=product)
            x = product(merge_heads(mixed), out)
        made.append(x[:, 0, 0].view(len(some), len(right)))
    return torch.cat(made)


def _order(who: str, left: Tensor, right: Tensor, places: Sequence[int] | None) -> Tensor:
    """Where each point of a whole input comes from: the left part and then the right one."""
    if min(left.dim(), right.dim()) < 2 or left.shape[2:] != right.shape[2:] or left.dtype != right.dtype:
        raise BadInput(
            f"{who}: `left` is {left.dtype} {tuple(left.shape)}, `right` {right.dtype} {tuple(right.shape)}; "
            "expected (r, n, ...) and (s, m, ...) alike but for samples and points"
        )
    points, total = left.shape[1], left.shape[1] + right.shape[1]
    chosen = [*range(points)] if places is None else [*places]
    if len({*chosen} & {*range(total)}) != points or len(chosen) != points:
        raise BadInput(
            f"{who}: `places` is {chosen}, expected {points} different ones from 0 to {total - 1}, one for "
            "each left point"
        )
    others = [place for place in range(total) if place not in {*chosen}]
    return torch.tensor([*chosen, *others]).argsort().to(left.device)


@torch.no_grad()
def _outputs(
    model: nn.Module, left: Tensor, right: Tensor, order: Tensor, readout: Readout, batch: int
) -> Tensor:
    """Outputs for all pairs, (k, r, s)."""
    r, s = len(left), len(right)
    made = []
    with evaluating(model):
        for pairs in torch.arange(r * s, device=left.device).split(batch):
            whole = torch.cat([left[pairs // s], right[pairs % s]], dim=1).index_select(1, order)
            read = readout(model(whole))
            if read.dim() != 2 or len(read) != len(pairs) or not torch.isfinite(read).all():
                raise BadInput(
                    f"separation_spectrum: the model and `readout` made {tuple(read.shape)} of {len(pairs)} "
                    "cases, expected finite numbers (cases, k)"
                )
            made.append(read.cpu())
    return torch.cat(made).mT.reshape(-1, r, s)


def _last_point(output: Tensor, most: int = 32) -> Tensor:
    read = (output[:, -1] if output.dim() > 2 else output).flatten(1)
    return read[:, :: -(-read.shape[1] // most)]


def _permuted(entries: Tensor, draws: torch.Generator) -> Tensor:
    return entries[torch.randperm(len(entries), generator=draws).to(entries.device)]


def _reading(matrices: Tensor) -> SeparationReading:
    """Of matrices (k, r, s), whose precision says what rounding is."""
    rounding = torch.finfo(matrices.dtype).eps * max(matrices.shape[-2:])
    matrices = matrices.double()
    values, tiny = torch.linalg.svdvals(matrices), torch.finfo(matrices.dtype).tiny
    squares = values.square()
    spread = matrices - matrices.mean((-2, -1), keepdim=True)
    coupled = spread - spread.mean(-1, keepdim=True) - spread.mean(-2, keepdim=True)
    # What is left of a sum of two functions is rounding.
    floor = (rounding * matrices.abs().amax((-2, -1))).square() * matrices[0].numel()
    energy, whole = coupled.square().sum((-2, -1)), spread.square().sum((-2, -1))
    alive = energy > floor
    return SeparationReading(
        float(effective_rank(values).mean()),
        float((squares.sum(-1) / squares[:, 0].clamp_min(tiny)).mean()),
        float((values > rounding * values[:, :1]).sum(-1).double().mean()),
        float(torch.where(alive, energy / whole.clamp_min(tiny), 0).mean()),
        float(torch.where(alive, effective_rank(torch.linalg.svdvals(coupled)), 0).mean()),
    )
