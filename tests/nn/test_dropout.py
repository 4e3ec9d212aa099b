"""Dropout: the plain one but where it is compiled for a GPU, and draws there that are as good as any."""

import re
from math import sqrt

import pytest
import torch
from torch import nn
from torch._inductor.utils import run_and_get_code

from kernelhead.nn import Dropout
from kernelhead.nn.dropout import MANY
from kernelhead.ops.eager.thinning import SPREAD
from kernelhead.ops.thinning import scrambled, thinned, thinned_by_bits
from tests.inputs import points

N = 2**18
PLACES = torch.arange(N, dtype=torch.int32)


def word(value: int) -> torch.Tensor:
    return torch.tensor(value, dtype=torch.int32)


def centred(value: int, p: float) -> torch.Tensor:
    """Which entries a word keeps, of mean 0 and deviation 1."""
    kept = (scrambled(PLACES, word(value)) >= int(p * 2**31)).double()
    return (kept - (1 - p)) / sqrt(p * (1 - p))


def murmur(place: int, value: int) -> int:
    """The same by whole numbers without a sign."""
    made = place ^ value
    made = ((made ^ made >> 16) * 0x9E3779B1 & 0xFFFFFFFF) ^ value
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
        made = (made ^ made >> shift) * factor & 0xFFFFFFFF
    return (made ^ made >> 16) & 0x7FFFFFFF


@pytest.mark.parametrize("how", ["few", "evaluation", "none", "all", "in place"])
def test_it_is_that_of_torch(how: str) -> None:
    x = torch.ones(40 if how == "few" else MANY)
    p, inplace = {"none": 1e-6, "all": 1.0}.get(how, 0.3), how == "in place"
    made = []
    for layer in (Dropout(p, inplace), nn.Dropout(p, inplace)):
        torch.manual_seed(0)
        made.append(layer.train(how != "evaluation")(x.clone()))
    assert torch.equal(*made)
    assert repr(Dropout(p, inplace)) == repr(nn.Dropout(p, inplace))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_gradients_by_hand_are_those_of_the_plain_writing(dtype: torch.dtype) -> None:
    x, above = points(31, 9, dtype=dtype).mT, points(9, 31, seed=1, dtype=dtype)
    made = []
    for wanted in (False, True):
        torch.manual_seed(0)
        made.append(thinned_by_bits(x.detach().requires_grad_(wanted), 0.3))
    assert torch.equal(*made)
    assert made[1].requires_grad
    torch.manual_seed(0)
    kept = thinned_by_bits(torch.ones_like(x), 0.3) != 0
    held = x.detach().requires_grad_()
    torch.manual_seed(0)
    (slope,) = torch.autograd.grad(thinned_by_bits(held, 0.3), held, above)
    assert torch.equal(slope, above * kept * (65536 / (65536 - 19661)))


def test_gradients_of_gradients() -> None:
    def thin(x: torch.Tensor) -> torch.Tensor:
        torch.manual_seed(0)
        return thinned_by_bits(x, 0.4)

    with torch.random.fork_rng():
        x = points(5, 3).requires_grad_()
        assert torch.autograd.gradcheck(thin, (x,))
        assert torch.autograd.gradgradcheck(thin, (x,))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("p", [0.1, 0.5, 2 / 65536, 0.9999])
def test_many_entries_on_the_cpu(p: float, dtype: torch.dtype) -> None:
    x = points(512, 513, dtype=dtype).requires_grad_()
    torch.manual_seed(0)
    made, (again, other) = Dropout(p)(x), (Dropout(p)(x), Dropout(p)(x))
    kept, gone = made != 0, round(p * 65536) / 65536
    share = 1 - kept.double().mean()
    assert abs(share - gone) < 5 * sqrt(gone * (1 - gone) / x.numel())
    assert torch.equal(made.detach(), (x * kept * (1 / (1 - gone))).detach())
    (grad,) = torch.autograd.grad(made.sum(), x)
    assert torch.equal(grad, kept.to(dtype) * (1 / (1 - gone)))
    assert not torch.equal(again, other)
    torch.manual_seed(0)
    assert torch.equal(Dropout(p)(x), made)


def test_bits_of_entries_are_apart() -> None:
    torch.manual_seed(1)
    kept = ((thinned_by_bits(torch.ones(N - 1), 0.1) != 0).double() - 0.9) / sqrt(0.09)
    for lag in (1, 2, 3, 4, 5, 8, 16, 64, 1024):
        assert abs((kept[:-lag] * kept[lag:]).mean()) * sqrt(N) < 4
    for rest in range(4):  # of the four entries that share a word
        assert abs(kept[rest::4].mean()) * sqrt(N / 4) < 4


def test_models_of_a_stack_draw_apart_on_the_cpu() -> None:
    layer = Dropout(0.5)
    made = torch.func.vmap(layer, randomness="different")(torch.ones(2, MANY))
    assert 0.45 < ((made[0] > 0) == (made[1] > 0)).double().mean() < 0.55


def test_the_hash() -> None:
    for value in (0, 1, 2**31 - 2):
        made = scrambled(PLACES[:500], word(value)).tolist()
        assert made == [murmur(place, value) for place in range(500)]


@pytest.mark.parametrize("p", [0.1, 0.5])
@pytest.mark.parametrize("value", [0, 1, 2, 77, 2**31 - 2])
def test_draws_of_a_word(value: int, p: float) -> None:
    kept = centred(value, p)
    assert abs(kept.mean()) * sqrt(N) < 4
    for lag in (1, 2, 3, 16, 64, 128, 1024, 4096):
        assert abs((kept[:-lag] * kept[lag:]).mean()) * sqrt(N) < 4


def test_draws_of_two_words() -> None:
    first = centred(0, 0.1)
    for value in (1, 2, 3, 64, 1024, 65_536, 2**30):
        assert abs((first * centred(value, 0.1)).mean()) * sqrt(N) < 4


def test_words_draw_each_place_alike() -> None:
    values = torch.randint(
        2**31 - 1, (4096, 1), dtype=torch.int32, generator=torch.Generator().manual_seed(0)
    )
    kept = (scrambled(PLACES[:64], values) >= int(0.1 * 2**31)).double().mean(0)
    assert ((kept - 0.9).abs() < 5 * sqrt(0.09 / 4096)).all()


def test_thinned() -> None:
    torch.manual_seed(0)
    x = torch.randn(8, 500, dtype=torch.float64, requires_grad=True)
    made = thinned(x, 0.2)
    kept = made != 0
    torch.testing.assert_close(made[kept], x[kept] / 0.8)
    (grad,) = torch.autograd.grad(made.sum(), x)
    torch.testing.assert_close(grad, kept.double() / 0.8)
    assert not torch.equal(kept, thinned(x, 0.2) != 0)


@pytest.mark.plain
def test_a_seed_gives_the_same_draws_traced_or_not() -> None:
    x, made = torch.ones(3, 70), []
    for run in (thinned, torch.compile(thinned, fullgraph=True, backend="aot_eager")):
        torch.manual_seed(3)
        made.append(run(x, 0.4))
    assert torch.equal(*made)


@pytest.mark.plain
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_compiler_folds_nothing_into_numbers_of_more_than_32_bits() -> None:
    """Triton refuses them, and places of a tensor of several axes are sums of multiples."""

    def sums(x: torch.Tensor) -> torch.Tensor:
        return thinned(x, 0.1).sum(-1)

    _, (code,) = run_and_get_code(torch.compile(sums, dynamic=False), torch.ones(64, 64))
    kernel = code.partition("extern")[2].partition("def call")[0]
    numbers = [int(each) for each in re.findall(r"(?<![.\d])-?\d{6,}", kernel)]
    assert SPREAD in numbers
    assert all(abs(each) < 2**32 for each in numbers)


def test_models_of_a_stack_draw_apart() -> None:
    made = torch.func.vmap(lambda x: thinned(x, 0.5), randomness="different")(torch.ones(2, 400))
    assert 0.3 < ((made[0] > 0) == (made[1] > 0)).double().mean() < 0.7


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
def test_compiled_for_a_gpu() -> None:
    layer, x = Dropout(0.1), torch.ones(64, 4096, device="cuda", dtype=torch.bfloat16)
    run = torch.compile(layer, fullgraph=True)
    made = [run(x) for _ in range(2)]
    assert not torch.equal(*made)
    for each in made:
        share = (each == 0).double().mean()
        assert abs(share - 0.1) < 5 * sqrt(0.09 / x.numel())
        assert each.unique().tolist() == [0.0, torch.tensor(1 / 0.9).bfloat16().item()]
    assert torch.equal(torch.compile(layer.eval(), fullgraph=True)(x), x)
