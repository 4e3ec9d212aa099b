"""What every attention module is: it attends, hands out a tensor, and can be recorded."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from kernelhead.errors import BadInput
from kernelhead.pattern import Pattern
from kernelhead.shapes import check_axes, check_mask, check_size, zeroed


@dataclass(frozen=True, eq=False)
class Moments:
    """Second moments of both scores of a layer, with what the KSVD objective needs beside them.

    Shapes: left, right (b, h, s), means over the real points; values (h, s); trace (h,), of the
    weights; projected_trace (b, h), of the weights after the landmarks.
    """

    left: Tensor
    right: Tensor
    values: Tensor
    trace: Tensor
    projected_trace: Tensor


@dataclass(frozen=True, eq=False)
class Attended:
    """What one call of an attention did.

    Attributes:
        output: (b, n, c).
        moments: second moments of the scores; only for primal layers and only while recording.
        pattern: what the layer applied, (b, h, n, m); only for ``record(..., patterns=True)``.
        kernel: the kernel that a primal layer stands for, of which `pattern` is the learned rank-s
            form; None where the two are the same.
    """

    output: Tensor
    moments: Moments | None = None
    pattern: Pattern | None = None
    kernel: Pattern | None = None


# What each module kept in its last forward outside a backward pass. Activation checkpointing runs
# a forward again inside the backward pass, maybe after the tape was closed, and must then compute
# the same tensors as the first time.
_KEPT: "WeakKeyDictionary[nn.Module, str]" = WeakKeyDictionary()


class AbstractRecorded(nn.Module, ABC):
    """Base of what a tape can record: says what a call is to keep, and notes what it did."""

    #: "off", "moments" or "patterns"; set by `record` for one with-block.
    recording: str = "off"
    #: where `record` wants the calls to be put, in order.
    recorded: "list[Attended] | None" = None

    def __init__(self) -> None:
        super().__init__()
        # Of the instance from the start: tracing a block of `record` then finds what it sets and resets.
        self.recording, self.recorded = "off", None

    def __getstate__(self) -> dict[str, object]:
        """A copy or a pickle of a module that is being recorded is not."""
        return {name: value for name, value in self.__dict__.items() if name not in ("recording", "recorded")}

    def _kept(self) -> str:
        """What the call that begins is to keep: the same as the first time where it is run again."""
        replay = _in_backward()
        keep = _KEPT.get(self, "off") if replay else self.recording
        if not (replay or torch.compiler.is_compiling()):
            _KEPT[self] = keep
        return keep

    def _note(self, attended: Attended) -> None:
        """Put a call on the tape, unless it is run again."""
        if self.recorded is not None and not _in_backward():
            self.recorded.append(attended)


class AbstractKernelAttention(AbstractRecorded):
    """Base of all attentions: write `attend`, get `forward`, masks checked and the tape.

    Shapes: x (b, n, c), one point a row; mask (b, n), True where real; context (b, m, c) with
    context_mask (b, m); returns (b, n, c), zero at padded points.
    """

    width: int
    heads: int
    #: whether a point sees itself and those before it only.
    causal: bool = False

    @abstractmethod
    def attend(
        self,
        x: Tensor,
        *,
        mask: Tensor | None,
        context: Tensor | None,
        context_mask: Tensor | None,
        keep: str,
    ) -> Attended:
        """Attend to checked inputs whose padded points are zero; `keep` says what to keep for the tape."""

    def forward(
        self,
        x: Tensor,
        *,
        mask: Tensor | None = None,
        context: Tensor | None = None,
        context_mask: Tensor | None = None,
    ) -> Tensor:
        """Attend to `x`, or from `x` to `context`; see the class for shapes."""
        who = type(self).__name__
        self._check(who, x, mask, "x", "mask")
        if context is None and context_mask is not None:
            raise BadInput(f"{who}: `context_mask` was given without `context`")
        if context is not None:
            self._check(who, context, context_mask, "context", "context_mask")
            check_axes(who, x=(x, "b n c"), context=(context, "b m c"))
        # Zero first: nothing in the padding, not even NaN, may reach a product or its gradient.
        x, context = zeroed(x, mask), None if context is None else zeroed(context, context_mask)
        attended = self.attend(x, mask=mask, context=context, context_mask=context_mask, keep=self._kept())
        output = zeroed(attended.output, mask)
        if self.recorded is not None:
            self._note(Attended(output, attended.moments, attended.pattern, attended.kernel))
        return output

    def _check(self, who: str, points: Tensor, mask: Tensor | None, name: str, mask_name: str) -> None:
        if points.dim() != 3 or points.shape[-1] != self.width:
            raise BadInput(f"{who}: `{name}` has shape {tuple(points.shape)}, expected (b, n, {self.width})")
        if points.shape[1] == 0:
            raise BadInput(
                f"{who}: `{name}` {tuple(points.shape)} is an empty sequence, expected a point or more"
            )
        check_mask(who, mask, points, mask_name)

    def _check_causal(self) -> None:
        if not self.causal:
            raise BadInput(f"{type(self).__name__}: start and step need causal=True")

    def _check_step(
        self, x: Tensor, batch: int, mask: Tensor | None = None, *, prompts: bool = False
    ) -> None:
        """A step takes x (batch, c) or, with `prompts`, (batch, n, c); a mask has an entry for each point."""
        self._check_causal()
        who, one = f"{type(self).__name__}.step", (batch, self.width)
        if x.shape != one and not (prompts and x.dim() == 3 and (x.shape[0], x.shape[2]) == one):
            several = f" or ({batch}, n, {self.width})" if prompts else ""
            raise BadInput(f"{who}: `x` has shape {tuple(x.shape)}, expected {one}{several}")
        check_mask(who, mask, x)


def check_heads(who: str, width: int, heads: int) -> int:
    """The width of one head.

    Raises:
        BadInput: the heads do not divide the width, or a size is not a positive whole number.
    """
    check_size(who, "width", width)
    check_size(who, "heads", heads)
    if width % heads:
        raise BadInput(f"{who}: width {width} does not split into {heads} heads")
    return width // heads


def _in_backward() -> bool:
    """Whether autograd is running this forward again, as activation checkpointing does."""
    if torch.compiler.is_compiling():
        return False
    return torch._C._current_graph_task_id() != -1
