"""Weights and checkpoints on disk: safetensors, written whole or not at all, read with a sentence."""

import json
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from kernelhead.errors import CheckpointError
from kernelhead.nn.store import read_tensors, write_tensors


def save_tensors(path: Path, tensors: dict[str, Tensor], facts: dict[str, Any]) -> None:
    """Write tensors with a JSON object of facts beside them.

    Raises:
        CheckpointError: the file cannot be written.
    """
    write_tensors(path, tensors, {"facts": json.dumps(facts)})


def load_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read what `save_tensors` wrote.

    Raises:
        CheckpointError: the file is missing, cut short, or not one of ours.
    """
    tensors, words = read_tensors(path)
    if "facts" not in words:
        raise CheckpointError(f"{path} was not written by kernelhead: it holds no facts")
    try:
        return tensors, json.loads(words["facts"])
    except ValueError as error:
        raise CheckpointError(f"{path} is not a whole safetensors file: {error}") from error


def load_into(path: Path, module: torch.nn.Module, tensors: dict[str, Tensor]) -> None:
    """Put weights into a module.

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
    """Put such tensors back."""
    state: dict[int, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        index, key = name.split(".", 1)
        state.setdefault(int(index), {})[key] = tensor
    optimiser.load_state_dict({"state": state, "param_groups": optimiser.state_dict()["param_groups"]})


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
