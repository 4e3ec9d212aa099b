"""A moving average of weights, in fixed places so that a captured step can keep it."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor


class Average:
    r"""The exponential moving average of weights that are changed in place.

    From its value and the weights after step t, counted from 0, the next value is
    $a \leftarrow d_t a + (1 - d_t) w$ with $d_t = \min(d, (1 + t) / (10 + t))$, so that the first weights
    are soon forgotten.

    Args:
        weights: those to follow, on one device; the average begins as they are.
        decay: d, from 0 to below 1.
        steps: how many there will be.

    Example:
        >>> weight = torch.zeros(2)
        >>> average = Average([weight], decay=0.999, steps=5)
        >>> _ = weight.fill_(1.0)
        >>> average.update(torch.tensor([0]))
        >>> with average.shown():
        ...     weight.tolist()
        [0.8999..., 0.8999...]
        >>> weight.tolist()
        [1.0, 1.0]
    """

    def __init__(self, weights: Iterable[Tensor], *, decay: float, steps: int) -> None:
        self.weights = [weight.detach() for weight in weights]
        self.values = [weight.clone() for weight in self.weights]
        step = torch.arange(steps, device=self.weights[0].device)
        self.shares = 1 - ((1 + step) / (10 + step)).clamp_max(decay)  # (steps,)

    def update(self, step: Tensor) -> None:
        """Take in the weights as they are after a step, whose number (1,) is on their device."""
        away = torch._foreach_sub(self.weights, self.values)
        torch._foreach_mul_(away, self.shares.index_select(0, step)[0])
        torch._foreach_add_(self.values, away)

    def put(self) -> None:
        """Leave the average in the place of the weights."""
        torch._foreach_copy_(self.weights, self.values)

    @contextmanager
    def shown(self) -> Iterator[None]:
        """Have the average in the place of the weights for a with-block."""
        held = [weight.clone() for weight in self.weights]
        self.put()
        try:
            yield
        finally:
            torch._foreach_copy_(self.weights, held)
