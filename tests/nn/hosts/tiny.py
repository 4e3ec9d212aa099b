"""Tiny models of Hugging Face and what to call them with: seeded, without dropout, four heads of eight."""

import warnings
from typing import Any

import torch
from torch import Tensor, nn

from tests.inputs import keep, points

SIZES = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "vocab_size": 50,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
PICTURE = {"image_size": 16, "patch_size": 8, "hidden_dropout_prob": 0.0}
SEQ2SEQ = {
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 64,
    "decoder_ffn_dim": 64,
    "vocab_size": 50,
    "dropout": 0.0,
}
GPT2 = {"n_embd": 32, "n_layer": 2, "n_head": 4, "vocab_size": 50, "bos_token_id": 1, "eos_token_id": 2}
OPTIONS: dict[str, dict[str, Any]] = {
    "Bert": {**SIZES, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0},
    "Roberta": {**SIZES, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0},
    "DistilBert": {
        "dim": 32,
        "n_layers": 2,
        "n_heads": 4,
        "hidden_dim": 64,
        "vocab_size": 50,
        "dropout": 0.0,
    },
    "ViT": {**SIZES, **PICTURE},
    "DeiT": {**SIZES, **PICTURE},
    "GPT2": {**GPT2, "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0},
    "Llama": {**SIZES, "num_key_value_heads": 2},
    "Mistral": {**SIZES, "num_key_value_heads": 2, "sliding_window": 3},
    "GPTNeoX": {**SIZES, "hidden_dropout": 0.0},
    "ModernBert": {**SIZES, "local_attention": 4, "cls_token_id": 1, "sep_token_id": 2},
    "Gemma2": {**SIZES, "num_key_value_heads": 2, "head_dim": 8},
    "DebertaV2": SIZES,
    "Longformer": {**SIZES, "attention_window": 4},
    "Bart": SEQ2SEQ,
    "T5": {
        "d_model": 32,
        "d_kv": 8,
        "d_ff": 64,
        "num_layers": 2,
        "num_heads": 4,
        "vocab_size": 50,
        "dropout_rate": 0.0,
    },
    "Swin": {
        "embed_dim": 16,
        "depths": [2],
        "num_heads": [2],
        "window_size": 2,
        "image_size": 16,
        "patch_size": 4,
    },
}
PICTURES = ("ViT", "DeiT", "Swin")
SEQ2SEQS = ("Bart", "T5")


def built(name: str, implementation: str = "sdpa", **options: Any) -> nn.Module:
    """A model in evaluation mode, the same for a name whatever its implementation of attention."""
    import transformers

    config = getattr(transformers, f"{name}Config")(**{**OPTIONS[name], **options})
    with torch.random.fork_rng():
        torch.manual_seed(0)
        with warnings.catch_warnings(action="ignore", category=DeprecationWarning):
            # Some files of models use what torch gives up.
            kind = getattr(transformers, f"{name}Model")
        model = kind(config)
        for parameter in model.parameters():
            # Patterns of freshly made models are flat.
            parameter.data.add_(0.2 * torch.randn_like(parameter))
    model.set_attn_implementation(implementation)
    return model.eval()


def tokens(*, lengths: list[int] | None = None, left: bool = False, n: int = 7) -> dict[str, Tensor]:
    """Two sequences of tokens; those with lengths have a padding mask, on the right or on the left."""
    ids = torch.randint(3, 50, (2, n), generator=torch.Generator().manual_seed(1))
    if lengths is None:
        return {"input_ids": ids}
    mask = keep(lengths, n)
    mask = mask.flip(-1) if left else mask
    return {"input_ids": ids.masked_fill(~mask, 0), "attention_mask": mask.long()}


def batch(name: str, *, lengths: list[int] | None = None) -> dict[str, Tensor]:
    """What a model is called with."""
    if name in PICTURES:
        return {"pixel_values": points(2, 3, 16, 16, dtype=torch.float32)}
    given = tokens(lengths=lengths)
    if name in SEQ2SEQS:
        given["decoder_input_ids"] = tokens(n=5)["input_ids"]
    return given


def fitting(model: nn.Module, given: dict[str, Any]) -> dict[str, Any]:
    """A batch in the precision of a model."""
    dtype = next(model.parameters()).dtype
    return {
        name: each.to(dtype) if isinstance(each, Tensor) and each.is_floating_point() else each
        for name, each in given.items()
    }
