"""Listen to the calls of a module for one with-block, and change nothing else."""

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from kernelhead.nn.base import _in_backward

Before = Callable[[tuple[Any, ...], dict[str, Any]], None]
After = Callable[[tuple[Any, ...], dict[str, Any], Any], None]


class _Tap:
    """Stands where a module's `forward` is looked up; a hook would switch torch's fast paths off."""

    def __init__(self, module: nn.Module, before: Before | None, after: After | None) -> None:
        self.module, self.inner, self.before, self.after = module, module.forward, before, after
        # What another tap has on it is its own.
        functools.update_wrapper(self, self.inner, updated=())

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        # Activation checkpointing runs a forward again in the backward pass: that is no new call.
        again = _in_backward()
        if self.before is not None and not again:
            self.before(args, kwargs)
        output = self.inner(*args, **kwargs)
        if self.after is not None and not again:
            self.after(args, kwargs, output)
        return output

    def __reduce__(self) -> tuple[Any, ...]:
        """A copy or a pickle of the module has its own forward, without the tap."""
        return getattr, (self.module, "forward")


@contextmanager
def tapped(module: nn.Module, *, before: Before | None = None, after: After | None = None) -> Iterator[None]:
    """Call `before(args, kwargs)` and `after(args, kwargs, output)` around each forward inside the block.

    Example:
        >>> import torch
        >>> layer, seen = nn.Linear(2, 3), []
        >>> with tapped(layer, after=lambda args, kwargs, output: seen.append(output.shape)):
        ...     out = layer(torch.zeros(1, 2))
        >>> seen, "forward" in vars(layer)
        ([torch.Size([1, 3])], False)
    """
    own = vars(module).get("forward")
    vars(module)["forward"] = _Tap(module, before, after)
    try:
        yield
    finally:
        if own is None:
            del vars(module)["forward"]
        else:
            vars(module)["forward"] = own


def first(output: Any) -> Tensor:
    """A module's output without the weights, caches and the like that some give beside it."""
    return output if isinstance(output, Tensor) else output[0]
