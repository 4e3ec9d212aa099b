"""look_up against its definition, its gradient, and what it refuses."""

import pytest
import torch

from kernelhead.errors import BadInput, ShapeError
from kernelhead.nn import Embedding
from kernelhead.ops import look_up
from kernelhead.ops.backends import lookup_backend
from tests.inputs import points

TOKENS = torch.tensor([[3, 0, 3], [1, 3, 3]])


def test_the_definition() -> None:
    table = points(4, 5)
    made = look_up(table, TOKENS)
    for row in range(2):
        for at in range(3):
            assert torch.equal(made[row, at], table[TOKENS[row, at]])


def test_gradients() -> None:
    table = points(4, 2).requires_grad_()
    assert torch.autograd.gradcheck(lambda each: look_up(each, TOKENS), [table])
    assert lookup_backend(table, TOKENS) == "eager"


@pytest.mark.parametrize("options", [{}, {"padding_idx": 0}, {"max_norm": 0.5}], ids=str)
def test_the_module_is_that_of_torch(options: dict[str, float]) -> None:
    plain = torch.nn.Embedding(4, 3, **options)  # type: ignore[arg-type]
    ours = Embedding(4, 3, **options)  # type: ignore[arg-type]
    ours.load_state_dict(plain.state_dict())
    made = [layer(TOKENS) for layer in (plain, ours)]
    assert torch.equal(*made)
    for each in made:
        each.square().sum().backward()
    assert torch.equal(plain.weight.grad, ours.weight.grad)
    assert repr(ours) == repr(plain)


def test_what_is_refused() -> None:
    with pytest.raises(ShapeError, match="look_up"):
        look_up(points(4), TOKENS)
    with pytest.raises(BadInput, match=r"look_up: `tokens` is torch\.uint8, expected torch\.int32"):
        look_up(points(4, 2), TOKENS.to(torch.uint8))
