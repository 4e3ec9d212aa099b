"""Tiny hosts of every family, with inputs that have padding: one line a host."""

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from kernelhead.nn.hosts import mend_torchvision
from kernelhead.rng import seeded
from kernelhead.surgery import Report, graft
from tests.inputs import keep, points

LENGTHS, LONGEST = [7, 4], 7
KEEP = keep(LENGTHS, LONGEST)


@dataclass(frozen=True)
class Host:
    """How a host is built and called.

    Attributes:
        make: the model, dropout off.
        inputs: keyword arguments for points or tokens whose padding holds garbage of a seed; with the
            mask in the host's dialect, or without one where `masked` is False.
        causal: whether it is.
        pads: whether it takes padding at all.
    """

    make: Callable[[], nn.Module]
    inputs: Callable[[int, bool], dict[str, Any]]
    causal: bool = False
    pads: bool = True


def built(name: str, *, seed: int = 0) -> nn.Module:
    """A host in float64 and evaluation mode, the same weights for a seed."""
    with seeded(seed), warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        return HOSTS[name].make().double().eval()


def inputs(name: str, *, masked: bool = True, garbage: int = 0) -> dict[str, Any]:
    """What the host is called with; `garbage` changes nothing but the padding."""
    return HOSTS[name].inputs(garbage, masked)


def output(model: nn.Module, given: dict[str, Any], *, masked: bool = True) -> Tensor:
    """The real rows of what a host gives, (real points, c)."""
    found = model(**given)
    found = found if isinstance(found, Tensor) else found[0]
    return found[KEEP] if masked and found.shape[:2] == KEEP.shape else found.flatten(0, 1)


def _points(garbage: int) -> Tensor:
    noise = points(2, LONGEST, 32, seed=100 + garbage)
    return torch.where(KEEP[..., None], points(2, LONGEST, 32), noise)


def _tokens(garbage: int, masked: bool) -> dict[str, Any]:
    drawn = torch.randint(2, 50, (2, LONGEST), generator=torch.Generator().manual_seed(0))
    noise = torch.randint(2, 50, (2, LONGEST), generator=torch.Generator().manual_seed(100 + garbage))
    mask = {"attention_mask": KEEP.long()} if masked else {}
    return {"input_ids": torch.where(KEEP, drawn, noise), **mask}


def _encoder(garbage: int, masked: bool) -> dict[str, Any]:
    return {"src": _points(garbage), "src_key_padding_mask": ~KEEP if masked else None}


def _decoder(garbage: int, masked: bool) -> dict[str, Any]:
    causal = torch.ones(LONGEST, LONGEST).triu(1).bool()
    padding = {"tgt_key_padding_mask": ~KEEP if masked else None}
    return {"tgt": _points(garbage), "memory": points(2, 5, 32, seed=3), "tgt_mask": causal, **padding}


def _pictures(garbage: int, masked: bool) -> dict[str, Any]:
    return {"pixel_values": points(2, 3, 8, 8)}


def _layer(kind: type[nn.Module]) -> nn.Module:
    return kind(32, 4, 64, dropout=0.0, batch_first=True)


def _hugging(name: str, **options: Any) -> Callable[[], nn.Module]:
    """A model of transformers with two layers of four heads and width 32, without dropout."""

    def make() -> nn.Module:
        transformers = pytest.importorskip("transformers")
        config = getattr(transformers, f"{name}Config")(**options)
        for each in [*vars(config)]:
            if "drop" in each and isinstance(getattr(config, each), float):
                setattr(config, each, 0.0)
        return getattr(transformers, f"{name}Model")(config)

    return make


def _timm() -> nn.Module:
    if not mend_torchvision():
        pytest.skip("no torchvision")
    return pytest.importorskip("timm").create_model(
        "vit_tiny_patch16_224", img_size=8, patch_size=4, embed_dim=32, depth=2, num_heads=4, num_classes=5
    )


CORES: dict[str, tuple[str, dict[str, Any]]] = {
    "primal": ("primal", {"rank": 3}),
    "landmarks": ("primal", {"rank": 3, "landmarks": 4}),
    "rpc": ("rpc", {}),
    "softmax": ("softmax", {}),
}


def put(model: nn.Module, core: str, where: str = "all", **given: Any) -> Report:
    """Graft one of `CORES`."""
    method, options = CORES[core]
    return graft(model, method, where, **options, **given)


WORDS = {"vocab_size": 50, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
BERT = {**WORDS, "intermediate_size": 64, "max_position_embeddings": 32}
PICTURE = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
PICTURE |= {"image_size": 8, "patch_size": 4}
GPT2 = {"vocab_size": 50, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 32}
GPT2 |= {"bos_token_id": 0, "eos_token_id": 1}

HOSTS: dict[str, Host] = {
    "torch_layer": Host(lambda: _layer(nn.TransformerEncoderLayer), _encoder),
    "torch_encoder": Host(lambda: nn.TransformerEncoder(_layer(nn.TransformerEncoderLayer), 2), _encoder),
    "torch_decoder": Host(
        lambda: nn.TransformerDecoder(_layer(nn.TransformerDecoderLayer), 2), _decoder, causal=True
    ),
    "bert": Host(_hugging("Bert", **BERT), _tokens),
    "roberta": Host(_hugging("Roberta", **{**BERT, "pad_token_id": 1}), _tokens),
    "distilbert": Host(
        _hugging("DistilBert", vocab_size=50, dim=32, n_layers=2, n_heads=4, hidden_dim=64), _tokens
    ),
    "vit": Host(_hugging("ViT", **PICTURE), _pictures, pads=False),
    "deit": Host(_hugging("DeiT", **PICTURE), _pictures, pads=False),
    "gpt2": Host(_hugging("GPT2", **GPT2), _tokens, causal=True),
    "llama": Host(_hugging("Llama", **BERT, num_key_value_heads=2), _tokens, causal=True),
    "timm_vit": Host(_timm, lambda garbage, masked: {"x": points(2, 3, 8, 8)}, pads=False),
}
