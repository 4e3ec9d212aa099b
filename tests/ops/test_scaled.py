"""Values of Scaled Attention: their answer, their laws, their gradients, their words."""

import pytest
import torch
from torch import Tensor

from kernelhead.errors import BadInput, ShapeError
from kernelhead.ops import scaled_values, softmax_pattern, values_less_matrix, values_less_pattern
from kernelhead.ops.eager import scaled as eager
from tests.inputs import keep, points
from tests.oracles import rpc as oracles
from tests.tolerance import assert_exact, assert_within

MASK = keep([6, 3], 6)


def sides(dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    return points(2, 2, 6, 3, dtype=dtype), points(2, 2, 6, 4, seed=1, dtype=dtype)


@pytest.mark.parametrize("mask", [None, MASK, keep([6, 0], 6)], ids=["plain", "masked", "nothing real"])
def test_the_rank_one_form_is_the_definition(mask: Tensor | None) -> None:
    key, value = sides()
    real = None if mask is None else mask[:, None]
    assert_exact(scaled_values(key, value, mask=real), oracles.scaled_values(key, value, mask=mask))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_lower_precision(dtype: torch.dtype) -> None:
    key, value = sides(dtype)
    logs = (key.float() @ key.float().mT / 3**0.5).logsumexp(-1)
    matrix = (logs.unsqueeze(-2) - logs.unsqueeze(-1)).exp() / 6
    plain = value - (matrix @ value.float()).to(dtype)
    assert_within(scaled_values(key, value), eager=plain, oracle=oracles.scaled_values(key, value))


def test_twice_is_once() -> None:
    key, value = sides()
    once = scaled_values(key, value)
    assert_exact(scaled_values(key, once), once)


def test_large_keys_stay_finite() -> None:
    key, value = sides(torch.float32)
    key = torch.nn.functional.normalize(key, dim=-1) * 40
    assert (key.double() @ key.double().mT / 3**0.5).max() > 88
    assert scaled_values(key, value).isfinite().all()


@pytest.mark.parametrize("masked", [False, True])
def test_chunks_change_nothing(masked: bool) -> None:
    key, _ = sides()
    real = MASK[:, None] if masked else None
    held = key.requires_grad_()
    whole, parts = (eager.log_sums(held, real, chunk=chunk) for chunk in (1024, 4))
    assert_exact(parts, whole)
    grads = (torch.autograd.grad(each.square().sum(), held)[0] for each in (parts, whole))
    assert_exact(*grads)


def test_learned_forms_are_products() -> None:
    key, value = sides()
    pattern, weight = softmax_pattern(key, key), torch.tensor(0.3, dtype=torch.float64)
    assert_exact(values_less_pattern(key, value, weight), value - 0.3 * pattern @ value)
    matrix = points(2, 6, 6, seed=3)
    assert_exact(values_less_matrix(value, matrix), value - matrix @ value)
    assert torch.equal(values_less_pattern(key, value, torch.zeros(())), value)
    assert torch.equal(values_less_matrix(value, torch.zeros(2, 6, 6)), value)


def test_padding_has_no_influence() -> None:
    real, made, grads = MASK[:, None], [], []
    weight, matrix = torch.tensor(0.3), points(2, 6, 6, seed=3)
    for filler in (0.0, torch.nan):
        key, value = (each.where(real[..., None], filler).requires_grad_() for each in sides())
        outputs = [
            scaled_values(key, value, mask=real),
            values_less_pattern(key, value, weight, mask=real),
            values_less_matrix(value, matrix, mask=real),
        ]
        made.append(outputs)
        grads.append(torch.autograd.grad(sum(each.square().sum() for each in outputs), (key, value)))
    assert all(map(torch.equal, *made))
    assert all(map(torch.equal, *grads))
    assert all((each.masked_select(~real[..., None]) == 0).all() for each in made[0])


@pytest.mark.parametrize("mask", [None, MASK[:, None]], ids=["plain", "masked"])
def test_gradients(mask: Tensor | None) -> None:
    held = [side.requires_grad_() for side in sides()]
    weight, matrix = points(1, seed=4).requires_grad_(), points(2, 6, 6, seed=5).requires_grad_()
    assert torch.autograd.gradcheck(lambda k, v: scaled_values(k, v, mask=mask), held)
    assert torch.autograd.gradcheck(lambda k, v, w: values_less_pattern(k, v, w, mask=mask), [*held, weight])
    assert torch.autograd.gradcheck(lambda v, s: values_less_matrix(v, s, mask=mask), [held[1], matrix])


def test_words() -> None:
    key, value = sides()
    with pytest.raises(ShapeError, match=r"scaled_values: axis `m` is 6 in `key` but 5 in `value`"):
        scaled_values(key, value[:, :, :5])
    with pytest.raises(BadInput, match=r"values_less_pattern: `mask` is torch.float32, expected torch.bool"):
        values_less_pattern(key, value, torch.zeros(()), mask=torch.ones(6))
    with pytest.raises(ShapeError, match=r"values_less_matrix: axis `n` is 6 in `value` but 5 in `matrix`"):
        values_less_matrix(value, torch.zeros(5, 5))
