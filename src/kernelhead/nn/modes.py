"""Evaluation mode for one with-block, with every part's own mode given back."""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn


@contextmanager
def evaluating(model: nn.Module) -> Iterator[nn.Module]:
    """Put a model and all its parts in evaluation mode inside the block.

    Example:
        >>> model = nn.Sequential(nn.Dropout(), nn.Dropout().eval())
        >>> with evaluating(model):
        ...     print([part.training for part in model])
        [False, False]
        >>> [part.training for part in model]
        [True, False]
    """
    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        yield model
    finally:
        for module, mode in modes.items():
            module.training = mode
