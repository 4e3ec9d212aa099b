"""Mixing of neighbours as a layer: padding, causality, and what it refuses."""

import pytest
import torch

from kernelhead.errors import BadInput
from kernelhead.nn import LocalMixing
from tests.inputs import keep, points


def layer(**options: object) -> LocalMixing:
    torch.manual_seed(0)
    return LocalMixing(6, taps=3, **options).double()  # type: ignore[arg-type]


def test_what_it_is() -> None:
    module, x = layer(dilation=2), points(2, 7, 6)
    value, gate = module.inward(x).chunk(2, -1)
    wide = torch.nn.functional.pad(value, (0, 0, 2, 2))
    mixed = sum(module.weight[tap] * wide[:, 2 * tap : 2 * tap + 7] for tap in range(3)) + module.bias
    expected = module.outward(mixed * gate * gate.sigmoid())
    torch.testing.assert_close(module(x), expected, rtol=1e-12, atol=1e-12)


def test_padding_is_as_if_it_were_not_there() -> None:
    module, x, mask = layer(), points(2, 7, 6), keep([7, 4], 7)
    x[1, 4:] = float("nan")
    made = module(x, mask=mask)
    torch.testing.assert_close(made[1:, :4], module(x[1:, :4]))
    assert not made[1, 4:].any()


def test_a_causal_one_sees_nothing_later() -> None:
    module, x = layer(causal=True), points(1, 7, 6)
    before = module(x)
    x[:, 5:] += 1
    assert torch.equal(module(x)[:, :5], before[:, :5])


def test_half_precision_by_autocast() -> None:
    module = layer().float()
    with torch.autocast("cpu", torch.bfloat16):
        assert module(points(1, 3, 6, dtype=torch.float32)).dtype == torch.bfloat16


def test_what_is_refused() -> None:
    with pytest.raises(BadInput, match="LocalMixing: taps is 0"):
        LocalMixing(6, taps=0)
    with pytest.raises(BadInput, match="LocalMixing: `x` has 5 features, expected 6"):
        layer()(points(1, 3, 5))
    assert "taps=3, dilation=1, causal=False" in repr(layer())
