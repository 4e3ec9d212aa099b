"""tapped: one tap on another, each with its own ears."""

import inspect

import torch
from torch import nn

from kernelhead.nn.hosts.taps import first, tapped


def test_taps_stand_on_each_other() -> None:
    layer, heard = nn.Linear(2, 2), []
    forward = layer.forward
    with tapped(layer, before=lambda args, kwargs: heard.append("outer")):
        with tapped(layer, after=lambda args, kwargs, output: heard.append("inner")):
            assert inspect.signature(layer.forward) == inspect.signature(forward)
            layer(torch.zeros(1, 2))
        layer(torch.zeros(1, 2))
    layer(torch.zeros(1, 2))
    assert heard == ["outer", "inner", "outer"]


def test_the_first_of_several_outputs() -> None:
    x = torch.zeros(2)
    assert first(x) is x
    assert first((x, None)) is x
