"""Whether modules do no more than their weights say, so that a kernel may do it in their place."""

import torch
from torch import nn
from torch.nn.modules import module as global_hooks

HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def is_plain(*modules: nn.Module) -> bool:
    """Whether all are linear maps as torch has them, with a bias and nothing hooked to their call.

    Example:
        >>> is_plain(nn.Linear(2, 3)), is_plain(nn.Linear(2, 3, bias=False))
        (True, False)
    """
    if not torch.compiler.is_compiling() and any(getattr(global_hooks, f"_global{name}") for name in HOOKS):
        return False
    return all(
        type(each) is nn.Linear and each.bias is not None and not is_hooked(each) and not _is_replaced(each)
        for each in modules
    )


def _is_replaced(module: nn.Module) -> bool:
    """Whether this module alone has another forward, as one that brings its weights from elsewhere."""
    return not torch.compiler.is_compiling() and "forward" in vars(module)


def is_hooked(module: nn.Module) -> bool:
    """Whether somebody wants to see, or to change, what goes through a module.

    Example:
        >>> is_hooked(nn.Linear(2, 3))
        False
    """
    return any(getattr(module, hooks) for hooks in HOOKS)
