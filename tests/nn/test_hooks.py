"""Which layers a kernel may stand in for."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from kernelhead.nn.hooks import is_plain


class Other(nn.Linear):
    """A layer that someone made of torch's."""


def test_layers_as_torch_has_them() -> None:
    assert is_plain(nn.Linear(2, 3), nn.Linear(3, 2))
    assert not is_plain(nn.Linear(2, 3), Other(2, 3))
    assert not is_plain(nn.Linear(2, 3, bias=False))


def test_a_layer_with_a_forward_of_its_own_is_none() -> None:
    layer = nn.Linear(2, 3)
    plain: Callable[[Tensor], Tensor] = layer.forward
    layer.forward = lambda x: 2 * plain(x)  # type: ignore[method-assign]
    assert not is_plain(layer)


def test_nor_is_any_while_all_are_watched() -> None:
    layer = nn.Linear(2, 3)
    handles = [
        layer.register_forward_hook(lambda *_: None),
        torch.nn.modules.module.register_module_forward_hook(lambda *_: None),
        torch.nn.modules.module.register_module_forward_pre_hook(lambda *_: None),
    ]
    for handle in handles:
        assert not is_plain(layer)
        handle.remove()
    assert is_plain(layer)
