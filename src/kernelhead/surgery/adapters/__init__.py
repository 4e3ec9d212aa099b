"""How each family of hosts is made to call a core: one file a family."""

from collections.abc import Callable

from torch import nn

from kernelhead.surgery.adapters import huggingface, timm_vit, torch_mha

Change = Callable[[nn.Module, nn.Module], None]

#: by family, how a module of a model is made to call its child `kernelhead`, and how that is undone.
ADAPTERS: dict[str, tuple[Change, Change]] = {
    "torch": (torch_mha.put, torch_mha.take),
    "timm": (timm_vit.put, timm_vit.take),
    "huggingface": (huggingface.put, huggingface.take),
}

__all__ = ["ADAPTERS"]
