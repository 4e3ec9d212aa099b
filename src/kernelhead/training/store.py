"""Weights and checkpoints on disk: safetensors, written whole or not at all, read with a sentence."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, TypeVar
from zlib import crc32

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from kernelhead.errors import CheckpointError, KernelheadError
from kernelhead.nn.store import read_tensors, write_tensors
from kernelhead.records import plain

SUM = "kernelhead.sum"  # of a file's content, where it was written with one
Model = TypeVar("Model", bound=nn.Module)
PRECISIONS = {torch.float16, torch.bfloat16, torch.float64}  # of models that are not of float32


def save_tensors(path: Path, tensors: dict[str, Tensor], facts: dict[str, Any]) -> None:
    """Write tensors with a JSON object of facts beside them.

    Raises:
        CheckpointError: the file cannot be written.
    """
    # One entry: several would be written in any order, and the same content is the same file.
    told = {**facts, SUM: content_sum(tensors, facts)}
    write_tensors(path, tensors, {"facts": json.dumps(told, default=plain)})


def load_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read what `save_tensors` wrote.

    Raises:
        CheckpointError: the file is missing, cut short, damaged, or not one of ours.
    """
    tensors, words = read_tensors(path)
    if "facts" not in words:
        raise CheckpointError(f"{path} was not written by kernelhead: it holds no facts")
    try:
        facts = json.loads(words["facts"])
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path} is not a whole safetensors file: {error}") from error
    if not isinstance(facts, dict):
        raise CheckpointError(f"{path} was not written by kernelhead: its facts are no JSON object")
    said = facts.pop(SUM, None)
    if said is not None and said != content_sum(tensors, facts):
        raise CheckpointError(f"{path} is damaged: it holds other bits than were saved")
    return tensors, facts


def load_model(path: Path, make: Callable[[], Model], tensors: dict[str, Tensor], *, layers: int) -> Model:
    """A model with the weights of a file, in their precision and in evaluation mode.

    It is made without memory first, so that sizes which a file says and does not have cost nothing.

    Args:
        path: of the file, for complaints.
        make: makes the model as the file says.
        tensors: what the file holds.
        layers: that the file says; each has weights.

    Raises:
        CheckpointError: no such model can be made, or a weight is missing, left over, or of another shape.
    """
    if layers > len(tensors):
        raise CheckpointError(f"{path} does not fit the model: {len(tensors)} weights for {layers} layers")
    try:
        with torch.device("meta"):
            check_fit(path, make(), tensors)
    except CheckpointError:
        raise
    except (KernelheadError, ArithmeticError, LookupError, TypeError, ValueError, RuntimeError) as error:
        why = (str(error).splitlines() or [""])[0]
        raise CheckpointError(f"{path} describes a model that cannot be made: {why}") from error
    model = make()
    if kinds := {tensor.dtype for tensor in tensors.values()} & PRECISIONS:
        model.to(kinds.pop())
    model.load_state_dict(tensors)
    return model.eval()


def check_fit(path: Path, module: nn.Module, tensors: dict[str, Tensor]) -> None:
    """See that weights are those of a module.

    Raises:
        CheckpointError: a weight is missing, left over, or of another shape.
    """
    own = module.state_dict()
    for name in sorted(own.keys() | tensors.keys()):
        if name not in tensors or name not in own:
            where = "the file" if name not in tensors else "the model"
            raise CheckpointError(f"{path} does not fit the model: {name!r} is not in {where}")
        if own[name].shape != tensors[name].shape:
            here, there = tuple(own[name].shape), tuple(tensors[name].shape)
            raise CheckpointError(f"{path} does not fit the model: {name!r} is {there}, expected {here}")


def load_into(path: Path, module: nn.Module, tensors: dict[str, Tensor]) -> None:
    """Put weights into a module.

    Raises:
        CheckpointError: a weight is missing, left over, or of another shape.
    """
    check_fit(path, module, tensors)
    module.load_state_dict(tensors)


def optimiser_tensors(optimiser: Optimizer) -> dict[str, Tensor]:
    """The state of an optimiser as named tensors."""
    state = optimiser.state_dict()["state"]
    return {
        f"{index}.{key}": torch.as_tensor(value)
        for index, entry in state.items()
        for key, value in entry.items()
    }


def restore_optimiser(optimiser: Optimizer, tensors: dict[str, Tensor]) -> None:
    """Put such tensors back.

    Raises:
        CheckpointError: one is of no weight, or of another shape.
    """
    state: dict[int, dict[str, Tensor]] = {}
    weights = dict(enumerate(weight for group in optimiser.param_groups for weight in group["params"]))
    for name, tensor in tensors.items():
        index, _, key = name.partition(".")
        weight = weights.get(int(index)) if index.isdecimal() else None
        if weight is None or (tensor.dim() and tensor.shape != weight.shape):
            raise CheckpointError(f"the optimiser has no {name!r} of shape {tuple(tensor.shape)}")
        state.setdefault(int(index), {})[key] = tensor
    optimiser.load_state_dict({"state": state, "param_groups": optimiser.state_dict()["param_groups"]})


def content_sum(tensors: Mapping[str, Tensor], facts: Mapping[str, Any] | None = None) -> str:
    """What changes with any bit of tensors and of the facts beside them.

    Example:
        >>> content_sum({"a": torch.zeros(2)}) == content_sum({"a": torch.zeros(2, 1)})
        False
    """
    total = crc32(json.dumps(facts or {}, default=plain).encode())
    for name in sorted(tensors):
        held = tensors[name].detach().cpu().contiguous().reshape(-1)
        about = f"{name} {held.dtype} {tuple(tensors[name].shape)}"
        total = crc32(held.view(torch.uint8).numpy().data, crc32(about.encode(), total))
    return f"{total:08x}"


def prepare_folder(folder: Path) -> None:
    """Make a run folder and see that it can be written, before any work is done.

    Raises:
        CheckpointError: it cannot.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise CheckpointError(
            f"cannot write to the run folder {folder}: {error.strerror or error}"
        ) from error
