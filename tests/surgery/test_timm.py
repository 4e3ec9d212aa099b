"""timm hosts: masks, norms and gates around the core, and tracing of features."""

import pytest
import torch

from kernelhead.errors import BadInput
from kernelhead.nn.hosts import mend_torchvision
from kernelhead.surgery import graft, restore
from tests.inputs import points
from tests.surgery.hosts import built, inputs, output
from tests.tolerance import assert_exact

if not mend_torchvision():
    pytest.skip("no torchvision", allow_module_level=True)
timm = pytest.importorskip("timm")


def attention(**options: object) -> torch.nn.Module:
    torch.manual_seed(0)
    return timm.layers.Attention(16, num_heads=4, norm_layer=torch.nn.LayerNorm, **options).double().eval()


@pytest.mark.parametrize(
    "options", [{}, {"qk_norm": True, "scale_norm": True, "gated": True}, {"attn_head_dim": 8}]
)
@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize(
    "given",
    [
        {},
        {"is_causal": True},
        {"attn_mask": torch.arange(5)[None, None, None] < torch.tensor([5, 3])[:, None, None, None]},
        {"attn_mask": torch.ones(5, 5).tril().bool()},
        {"attn_mask": torch.zeros(5, 5).masked_fill(torch.ones(5, 5).triu(1).bool(), -torch.inf)},
    ],
    ids=["bare", "causal", "padding", "triangle", "added"],
)
def test_softmax_changes_nothing(options: dict[str, object], fused: bool, given: dict[str, object]) -> None:
    module, x = attention(**options), points(2, 5, 16)
    module.fused_attn = fused
    given = {
        name: each.double() if torch.is_tensor(each) and each.is_floating_point() else each
        for name, each in given.items()
    }
    expected = module(x, **given)
    graft(module, "softmax")
    assert_exact(module(x, **given), expected)
    restore(module)
    assert torch.equal(module(x, **given), expected)


def test_other_masks_are_refused() -> None:
    module = attention()
    graft(module, "softmax")
    with pytest.raises(BadInput, match="neither padding of keys nor causal"):
        module(points(2, 5, 16), attn_mask=torch.eye(5).bool())


@pytest.mark.parametrize("core", ["primal", "rpc", "softmax"])
def test_features_are_traced(core: str) -> None:
    from timm.models._features_fx import GraphExtractNet

    model = built("timm_vit")
    graft(model, core, "all", rank=3 if core == "primal" else None)
    traced = GraphExtractNet(model, {"blocks.0": "first", "head": "last"})
    found = traced(inputs("timm_vit")["x"])
    assert_exact(found[-1].flatten(0, 1), output(model, inputs("timm_vit")))
