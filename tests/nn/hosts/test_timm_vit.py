"""timm: which of its attentions is found, and that what is read is what it did, fused or not."""

import pytest
import torch
from torch import Tensor, nn

from kernelhead.nn import record
from kernelhead.nn.heads import merge_heads
from kernelhead.nn.hosts import find_sites, mend_torchvision, reading
from tests.inputs import keep, points
from tests.tolerance import assert_exact

mend_torchvision()
timm = pytest.importorskip("timm")

SIZES = {"img_size": 16, "patch_size": 4, "embed_dim": 24, "depth": 2, "num_heads": 3, "num_classes": 5}


def built(name: str = "vit_tiny_patch16_224", **options: object) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return timm.create_model(name, **{**SIZES, **options}).double().eval()


def attention(*, fused: bool, **options: object) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        layer = timm.layers.attention.Attention(24, 3, **options).double()
    layer.fused_attn = fused
    return layer


@pytest.mark.parametrize(
    "name", ["vit_tiny_patch16_224", "deit_tiny_patch16_224", "vit_small_patch14_dinov2"]
)
def test_what_is_found(name: str) -> None:
    sites = find_sites(built(name))
    assert [site.path for site in sites] == ["blocks.0.attn", "blocks.1.attn"]
    for site in sites:
        assert (site.family, site.kind, site.reason, site.readable) == ("timm", "Attention", None, True)
        assert (site.width, site.heads, site.kv_heads, site.head) == (24, 3, 3, 8)
        assert (site.causal, site.cross) == (False, False)


@pytest.mark.parametrize(
    ("name", "options", "kind", "reason"),
    [
        ("eva02_tiny_patch14_224", {}, "EvaAttention", "rotary positions"),
        ("beit_base_patch16_224", {}, "Attention", "relative position bias"),
        (
            "swin_tiny_patch4_window7_224",
            {"depth": None, "num_heads": (2,), "depths": (2,), "window_size": 2},
            "WindowAttention",
            "relative position bias",
        ),
        ("cait_xxs24_224", {}, "TalkingHeadAttn", "is not timm.layers.attention.Attention"),
    ],
)
def test_what_cannot_be_grafted_says_why(
    name: str, options: dict[str, object], kind: str, reason: str
) -> None:
    given = {key: value for key, value in {**SIZES, **options}.items() if value is not None}
    sites = [site for site in find_sites(timm.create_model(name, **given)) if site.kind == kind]
    assert len(sites) == 2
    for site in sites:
        assert (site.family, site.readable) == ("timm", False)
        assert reason in site.reason


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize(
    "options",
    [{}, {"qkv_bias": True}, {"qk_norm": True, "norm_layer": nn.LayerNorm}, {"attn_head_dim": 4}],
    ids=str,
)
@pytest.mark.parametrize(
    ("mask", "causal"),
    [
        (None, False),
        (None, True),
        (keep([6, 4], 6)[:, None, None], False),
        (points(6, 6, seed=3), False),
        (torch.ones(6, 6).tril().bool(), False),
    ],
    ids=["none", "causal", "padding", "bias", "triangle"],
)
def test_outputs_are_those_of_the_layer(
    fused: bool, options: dict[str, object], mask: Tensor | None, causal: bool
) -> None:
    layer, x = attention(fused=fused, **options), points(2, 6, 24)
    before = layer(x, attn_mask=mask, is_causal=causal)
    with reading(layer) as read:
        assert torch.equal(layer(x, attn_mask=mask, is_causal=causal), before)
    ((sides,),) = read.values()
    assert_exact(layer.proj(merge_heads(sides.output())), before)
    assert sides.causal == (causal or (mask is not None and mask.dtype == torch.bool and mask.dim() == 2))
    assert not sides.query.requires_grad


@pytest.mark.parametrize("training", [True, False])
def test_models_keep_their_bits(training: bool) -> None:
    model, x = built(drop_rate=0.2, attn_drop_rate=0.2).train(training), points(2, 3, 16, 16)
    torch.manual_seed(3)
    before, state = model(x), torch.get_rng_state()
    torch.manual_seed(3)
    with record(model, patterns=True) as tape:
        assert torch.equal(model(x), before)
    assert torch.equal(state, torch.get_rng_state())
    assert list(tape.calls) == ["blocks.0.attn", "blocks.1.attn"]
    assert tape.last("blocks.0.attn").pattern.shape == (2, 3, 17, 17)
    assert tape.last("blocks.0.attn").output.shape == (2, 17, 24)
    assert not any("forward" in vars(module) for module in model.modules())


def test_checkpointed_blocks() -> None:
    model, x = built().train(), points(2, 3, 16, 16)
    plain = torch.autograd.grad(model(x).sum(), [*model.parameters()])
    model.set_grad_checkpointing()
    with record(model, patterns=True) as tape:
        inside = torch.autograd.grad(model(x).sum(), [*model.parameters()])
        later = model(x).sum()
    assert len(tape) == 4
    assert all(map(torch.equal, plain, inside))
    assert all(map(torch.equal, plain, torch.autograd.grad(later, [*model.parameters()])))
