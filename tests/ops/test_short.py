"""The linear rivals with long products in the points' precision: the same answers, gradients and laws."""

from collections.abc import Callable
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from kernelhead.kernels.features import draw_frequencies, positive_features
from kernelhead.ops import backends
from kernelhead.ops import linear as ops
from kernelhead.ops.eager import linear as eager
from kernelhead.ops.eager import short
from kernelhead.ops.eager.softmax import seen_softmax, wide
from kernelhead.rng import generator
from tests.inputs import keep, points
from tests.tolerance import assert_exact, assert_within

gpu = pytest.mark.gpu
FREQUENCIES = draw_frequencies(10, 8, generator(0))
Attention = Callable[..., Tensor]
NAMES = {
    "linear": ("linear_attention", {}),
    "performer": ("performer_attention", {"frequencies": FREQUENCIES}),
    "nystrom": ("nystrom_attention", {"landmarks": 4, "iterations": 6}),
    "nystrom, a landmark each": ("nystrom_attention", {"landmarks": 12, "iterations": 6}),
    "nystrom, uneven segments": ("nystrom_attention", {"landmarks": 5, "iterations": 6}),
    "nystrom, one landmark": ("nystrom_attention", {"landmarks": 1, "iterations": 6}),
}
MASKS = {
    "all": None,
    "behind": keep([12, 7], 12),
    "front": keep([12, 3], 12).flip(-1),
    "nothing real": keep([0, 12], 12),
}
every_name = pytest.mark.parametrize("name", NAMES)
every_mask = pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)


def attention(module: object, name: str, device: str = "cpu") -> Attention:
    """The attention of a module, with what it needs beside its sides."""
    called, options = NAMES[name]
    moved = {key: each.to(device) if isinstance(each, Tensor) else each for key, each in options.items()}
    return partial(getattr(module, called), **moved)


def sides(n: int = 12, dtype: torch.dtype = torch.float64, device: str = "cpu") -> list[Tensor]:
    made = (points(2, 3, n, 8, seed=seed, dtype=dtype) for seed in range(3))
    return [side.to(device).requires_grad_() for side in made]


def answered(run: Attention, held: list[Tensor], mask: Tensor | None) -> list[Tensor]:
    """An output and its gradients for one fixed gradient."""
    output = run(*held, mask=mask)
    grad = points(*output.shape, seed=7, dtype=torch.float64).to(output)
    return [output, *torch.autograd.grad(output, held, grad)]


def plain(
    name: str, query: Tensor, key: Tensor, value: Tensor, frequencies: Tensor, *, mask: Tensor | None
) -> Tensor:
    """The definition, all patterns written out in the precision of the points."""
    called, options = NAMES[name]
    seen = torch.ones_like(query[:, :1, :, 0], dtype=torch.bool) if mask is None else mask
    if called != "nystrom_attention":
        features: Attention = eager.elu_features
        if called == "performer_attention":
            features = partial(positive_features, frequencies=frequencies)
        weights = features(query) @ features(key).mT * seen.unsqueeze(-2)
        return weights / weights.sum(-1, keepdim=True).clamp_min(1e-30) @ value
    member = eager.segments(seen, int(options["landmarks"]))
    sizes = member.sum(-1, keepdim=True)
    means = (member / sizes.clamp_min(1)).to(query.dtype)
    left, right = means @ query, means @ key
    scale = query.shape[-1] ** -0.5
    first = seen_softmax(query @ right.mT * scale, sizes.mT > 0)
    last = seen_softmax(left @ key.mT * scale, seen.unsqueeze(-2))
    inverse = eager.inverted(wide(left) * scale, wide(right), "iterative", 6)
    gathered = inverse.to(query.dtype) @ (last @ value)
    gathered = torch.where((sizes <= 1).all(-2, keepdim=True), means @ value, gathered)
    return first @ gathered * seen.unsqueeze(-1)


@every_name
@every_mask
def test_in_float64_it_is_the_same(name: str, mask: Tensor | None) -> None:
    mask = None if mask is None else mask[:, None]
    ours = answered(attention(short, name), sides(), mask)
    for one, other in zip(ours, answered(attention(eager, name), sides(), mask), strict=True):
        assert_exact(one, other)


@pytest.mark.parametrize("n", [1024, 2048, 1500])
@pytest.mark.parametrize("name", ["linear", "performer"])
def test_long_products_in_parts_are_the_same(name: str, n: int) -> None:
    ours = answered(attention(short, name), sides(n), None)
    for one, other in zip(ours, answered(attention(eager, name), sides(n), None), strict=True):
        assert_exact(one, other)


@every_name
@every_mask
def test_in_bfloat16_it_errs_no_more_than_twice(name: str, mask: Tensor | None) -> None:
    mask = None if mask is None else mask[:, None]
    held = sides(dtype=torch.bfloat16)
    ours = answered(attention(short, name), held, mask)
    check(name, ours, held, mask)
    assert {each.dtype for each in ours} == {torch.bfloat16}


@every_name
@pytest.mark.parametrize("n", [1000, 1024])
def test_a_small_mean_of_large_values_counts_once(name: str, n: int) -> None:
    # Of large values rounding keeps what was taken: if the mean is added whole, they have it twice.
    held = sides(n, torch.bfloat16)
    check(name, answered(attention(short, name), held, None), held, None)


def check(name: str, ours: list[Tensor], held: list[Tensor], mask: Tensor | None) -> None:
    """An output and its gradients against float64, beside what plain writing gives in that precision."""
    exact = [side.detach().double().requires_grad_() for side in held]
    oracle = answered(attention(eager, name, str(held[0].device)), exact, mask)
    written = partial(plain, name, frequencies=FREQUENCIES.to(held[0]))
    for one, other, best in zip(ours, answered(written, held, mask), oracle, strict=True):
        assert_within(one, eager=other, oracle=best)


@every_name
def test_what_stands_at_padding_has_no_influence(name: str) -> None:
    mask = keep([12, 7], 12)[:, None]
    query, *others = sides()
    clean = [query, *(side.detach().where(mask.unsqueeze(-1), 0).requires_grad_() for side in others)]
    dirty = [query, *(side.detach().where(mask.unsqueeze(-1), torch.nan).requires_grad_() for side in others)]
    run = attention(short, name)
    real = mask.unsqueeze(-1).expand(2, 3, 12, 8)
    both = [run(*each, mask=mask)[real] for each in (clean, dirty)]
    assert torch.equal(*both)
    grads = [
        torch.autograd.grad(each.square().sum(), held)
        for each, held in zip(both, (clean, dirty), strict=True)
    ]
    for one, other in zip(*grads, strict=True):
        assert torch.equal(one[real], other[real])


@pytest.mark.parametrize("name", ["linear", "performer", "nystrom", "nystrom, uneven segments"])
def test_gradients_do_not_lose_themselves_in_what_values_share(name: str) -> None:
    query, key, value = (side.detach() for side in sides(512, torch.bfloat16))
    # Multiples of 1/64 below one half have exact neighbours at one.
    value = (value * 16).round().clamp(-31, 31) / 64
    masked = keep([512, 100], 512)[:, None] if "uneven" in name else None
    errors = []
    for shared in (0.0, 1.0):
        held = [side.clone().requires_grad_() for side in (query, key, value + shared)]
        exact = [side.detach().double().requires_grad_() for side in held]
        found = answered(attention(short, name), held, masked)[1:3]
        best = answered(attention(eager, name), exact, masked)[1:3]
        errors.append([(one - other).norm() / other.norm() for one, other in zip(found, best, strict=True)])
    without, offset = torch.tensor(errors)
    assert (offset <= 2 * without + torch.finfo(torch.bfloat16).eps).all(), errors


def test_an_exact_inverse_is_left_to_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backends, "on_cuda", lambda _: True)
    monkeypatch.setattr(short, "nystrom_attention", None)
    with torch.no_grad():
        held = sides(dtype=torch.bfloat16)
        output = ops.nystrom_attention(*held, landmarks=4, pinv="exact")
        assert torch.equal(output, eager.nystrom_attention(*held, landmarks=4, pinv="exact"))


@pytest.mark.parametrize("backend", [backends.features_backend, backends.short_backend])
def test_the_backend_is_eager_where_it_does_not_fit(
    backend: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Points too narrow for kernels of features.
    x = torch.zeros(2, 3, 4, 8, dtype=torch.bfloat16)
    assert backend(x, x, x, None) == "eager"
    monkeypatch.setattr(backends, "on_cuda", lambda _: True)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace(major=9, minor=0))
    assert backend(x, x, x, None) == "short"
    assert backend(x, x, x, torch.ones(2, 1, 4, dtype=torch.bool)) == "short"
    assert backend(x, x, x.float(), None) == "eager"
    assert backend(x.half(), x.half(), x.half(), None) == "eager"
    assert backend(x[0], x[0], x[0], None) == "eager"


@gpu
@every_name
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize("n", [1000, 1024])
@pytest.mark.parametrize("masked", [False, True], ids=["all", "masked"])
def test_on_a_gpu_it_errs_no_more_than_twice(name: str, compiled: bool, n: int, masked: bool) -> None:
    mask = keep([n, n // 3], n)[:, None].cuda() if masked else None
    held = sides(n, torch.bfloat16, "cuda")
    # Heads of 8 features: those of 16 and more are for kernels, but in Nystrom attention.
    assert backends.features_backend(*held, mask) == backends.short_backend(*held, mask) == "short"

    def run(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Tensor:
        return attention(ops, name, "cuda")(query, key, value, mask=mask)

    call = torch.compile(run, dynamic=False, fullgraph=True) if compiled else run
    check(name, answered(call, held, mask), held, mask)
