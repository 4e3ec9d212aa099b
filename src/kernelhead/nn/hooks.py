"""Whether modules do no more than their weights say, so that a kernel may do it in their place."""

from torch import nn

HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def is_plain(*modules: nn.Module) -> bool:
    """Whether all are linear maps as torch has them, with a bias and nothing hooked to their call.

    Example:
        >>> is_plain(nn.Linear(2, 3)), is_plain(nn.Linear(2, 3, bias=False))
        (True, False)
    """
    return all(type(each) is nn.Linear and each.bias is not None and not is_hooked(each) for each in modules)


def is_hooked(module: nn.Module) -> bool:
    """Whether somebody wants to see, or to change, what goes through a module.

    Example:
        >>> is_hooked(nn.Linear(2, 3))
        False
    """
    return any(getattr(module, hooks) for hooks in HOOKS)
