"""One sentence per mistake in a shape: who complains, which axis, both numbers, both owners."""

from numbers import Integral
from typing import TYPE_CHECKING

from kernelhead.errors import BadInput, ShapeError

if TYPE_CHECKING:
    from torch import Tensor


def check_axes(who: str, **tensors: "tuple[Tensor, str]") -> dict[str, int]:
    """Check that axes with the same letter have the same size, and return the sizes.

    Args:
        who: name of the function that complains.
        tensors: for each name a tensor and its axes, such as ``(query, "... n d")``; a leading
            ``...`` admits any number of batch axes.

    Returns:
        The size of every named axis.

    Raises:
        ShapeError: an axis has two sizes, or a tensor has the wrong number of axes.

    Example:
        >>> import torch
        >>> check_axes("f", query=(torch.zeros(2, 5, 4), "... n d"), left=(torch.zeros(4, 3), "... d s"))
        {'n': 5, 'd': 4, 's': 3}
    """
    sizes: dict[str, int] = {}
    owner: dict[str, str] = {}
    for name, (tensor, axes) in tensors.items():
        letters = axes.split()
        shape = tuple(tensor.shape)
        open_front = letters[0] == "..."
        letters = letters[1:] if open_front else letters
        if len(shape) < len(letters) or (len(shape) != len(letters) and not open_front):
            raise ShapeError(f"{who}: `{name}` has shape {shape}, but its axes are ({axes})")
        for letter, size in zip(letters, shape[len(shape) - len(letters) :], strict=True):
            if letter in sizes and sizes[letter] != size:
                raise ShapeError(
                    f"{who}: axis `{letter}` is {sizes[letter]} in `{owner[letter]}` "
                    f"but {size} in `{name}` {shape}, whose axes are ({axes})"
                )
            sizes.setdefault(letter, size)
            owner.setdefault(letter, name)
    return sizes


def check_mask(who: str, mask: "Tensor | None", points: "Tensor", name: str = "mask") -> None:
    """Check that a padding mask is boolean and has one entry a point: (b, n) for points (b, n, c).

    Args:
        name: of the mask, for the message.

    Raises:
        BadInput: the mask is not boolean.
        ShapeError: it does not have the points' batch and length.
    """
    if mask is None:
        return
    if str(mask.dtype) != "torch.bool":
        raise BadInput(
            f"{who}: `{name}` is {mask.dtype}, expected torch.bool with True where a point is real"
        )
    if mask.shape != points.shape[:-1]:
        raise ShapeError(
            f"{who}: `{name}` has shape {tuple(mask.shape)}, expected {tuple(points.shape[:-1])}, "
            f"one entry for each point of {tuple(points.shape)}"
        )


def check_size(who: str, name: str, value: object, *, least: int = 1) -> int:
    """Check that an option is a whole number of at least `least`, and return it.

    Args:
        name: of the option, for the message.
        value: what was given for it.

    Raises:
        BadInput: it is something else.
    """
    if isinstance(value, bool) or not isinstance(value, Integral) or value < least:
        raise BadInput(f"{who}: {name} is {value!r}, expected a whole number of at least {least}")
    return int(value)


def zeroed(points: "Tensor", mask: "Tensor | None") -> "Tensor":
    """Points (... n c) with zeros where the mask (... n) is False.

    Example:
        >>> import torch
        >>> zeroed(torch.ones(3, 1), torch.tensor([True, False, True])).flatten()
        tensor([1., 0., 1.])
    """
    return points if mask is None else points.masked_fill(~mask.unsqueeze(-1), 0)
