"""What every core is: queries, keys and values in, mixed values out; and it can be recorded."""

from abc import abstractmethod
from dataclasses import replace
from typing import Any, ClassVar, NamedTuple

import torch.nn.functional as F
from torch import Tensor

from kernelhead.errors import BadInput
from kernelhead.nn.base import AbstractRecorded, Attended
from kernelhead.pattern import Dense, Factored, Pattern
from kernelhead.shapes import check_axes, check_mask, check_size, zeroed


class Call(NamedTuple):
    """What a core is called with, and what the call is to keep for the tape.

    Shapes: query (b, h, n, d), key and value (b, h, m, d), mask (b, m).
    """

    query: Tensor
    key: Tensor
    value: Tensor
    mask: Tensor | None
    causal: bool
    scale: float | None
    keep: str

    @property
    def real(self) -> Tensor | None:
        """Which keys are real, (b, 1, m)."""
        return None if self.mask is None else self.mask[:, None]

    @property
    def rows(self) -> Tensor:
        """As many queries as keys if causal: the last are the call's, those before are zero."""
        return with_past(self.query, self.key) if self.causal else self.query


class AbstractCore(AbstractRecorded):
    """Base of cores: write `attend`, get `forward` with sides checked, padding zeroed, and the tape.

    Shapes: query (b, h, n, d), key and value (b, h, m, d), mask (b, m), True where a key is real;
    returns (b, h, n, d). Unless a core attends across sequences, queries are the last n of the m points,
    and what comes out at padded ones is zero. What is recorded has these shapes too.

    Args:
        heads: heads h.
        head: features of a head, d.

    Raises:
        BadInput: a size is not a positive whole number.
    """

    #: what `core_of` calls it.
    name: ClassVar[str]
    #: whether queries may be of another sequence than keys.
    crosses: ClassVar[bool] = False
    #: those of "query", "key" and "value" that the method does not read: their projections get no gradient.
    unused: frozenset[str] = frozenset()

    def __init__(self, heads: int, head: int) -> None:
        super().__init__()
        who = type(self).__name__
        self.heads, self.head = check_size(who, "heads", heads), check_size(who, "head", head)

    @abstractmethod
    def attend(self, call: Call) -> Attended:
        """Attend with checked sides that are zero at padded points."""

    @abstractmethod
    def options(self) -> dict[str, Any]:
        """What `core_of` needs beside the name and the sizes to build such a core again."""

    def extra_repr(self) -> str:
        """Sizes and options."""
        return ", ".join(
            f"{k}={v}" for k, v in {"heads": self.heads, "head": self.head, **self.options()}.items()
        )

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *,
        mask: Tensor | None = None,
        causal: bool = False,
        scale: float | None = None,
    ) -> Tensor:
        """Attend; see the class for shapes.

        Args:
            causal: whether a query sees the keys up to its own only; the last query sees the last key.
            scale: of the inner products in a softmax, 1 / sqrt(d) if None; other cores have no use for it.

        Raises:
            BadInput: the sides do not fit the core or each other, or it has no such form.
            ShapeError: two axes disagree.
        """
        self._check(query, key, value, mask, causal)
        real = None if mask is None else mask[:, None]
        key, value = zeroed(key, real), zeroed(value, real)
        if not self.crosses:
            query = zeroed(query, last(real, query))
        attended = self.attend(Call(query, key, value, mask, causal, scale, self._kept()))
        output = attended.output if self.crosses else zeroed(attended.output, last(real, query))
        if self.recorded is not None:
            self._note(replace(attended, output=output))
        return output

    def _check(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, causal: bool) -> None:
        who = type(self).__name__
        axes = {"query": (query, "b h n d"), "key": (key, "b h m d"), "value": (value, "b h m d")}
        sizes = check_axes(who, **axes)
        n, m = sizes["n"], sizes["m"]
        if (sizes["h"], sizes["d"]) != (self.heads, self.head):
            raise BadInput(
                f"{who}: `query` has shape {tuple(query.shape)}, expected (b, {self.heads}, n, {self.head})"
            )
        if n == 0 or m == 0:
            raise BadInput(f"{who}: there are {n} queries and {m} keys, expected one or more of each")
        if n > m and causal:
            raise BadInput(
                f"{who}: causal needs a key for each query, but there are {n} queries and {m} keys"
            )
        if n != m and not (causal or self.crosses):
            raise BadInput(
                f"{who}: attends from points to themselves, but there are {n} queries and {m} keys; "
                "fewer queries than keys need causal=True"
            )
        check_mask(who, mask, key[:, 0])


def with_past(query: Tensor, key: Tensor) -> Tensor:
    """As many queries as keys: the last are real, those before are zero and their rows to be dropped."""
    n, m = query.shape[-2], key.shape[-2]
    return query if n == m else F.pad(query, (0, 0, m - n, 0))


def last(real: Tensor | None, query: Tensor) -> Tensor | None:
    """Which of the queries are real, (b, 1, n), from which of the points are, (b, 1, m)."""
    return None if real is None else real[..., real.shape[-1] - query.shape[-2] :]


def last_rows(pattern: Pattern, n: int) -> Pattern:
    """The last n rows of a pattern."""
    if isinstance(pattern, Dense):
        return Dense(pattern.entries[..., -n:, :])
    return Factored(pattern.left[..., -n:, :], pattern.values, pattern.right)
