"""What a run says of where it computed, and whether a folder is its own."""

import fcntl
import os
import platform
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from kernelhead.errors import BadInput, CheckpointError
from kernelhead.records import (
    CHECKPOINT,
    CONFIG,
    DOT,
    FLOW,
    GRAPH,
    KPCA,
    MAPS,
    METRICS,
    REPORT,
    RESULT,
    SPECTRUM,
    TRANSPORT,
    WEIGHTS,
    read_json,
    take_away,
)

# All that a run leaves and all that is read off it; taken away in this order, so that a folder is known
# by its recipe as long as anything of that recipe is in it.
LEFT_BY_A_RUN = (
    *(RESULT, SPECTRUM, MAPS, KPCA, FLOW, GRAPH, DOT, TRANSPORT),
    *(CHECKPOINT, WEIGHTS, METRICS, CONFIG),
)

# Entries of a recipe that may be others once a run is done: its name, and where things are.
OF_THE_PLACE = {"name", "data", "test", "accelerator", "devices"}


def check_own(path: Path, recipe: object) -> None:
    """See that the recipe in a file of weights is that of the run folder it lies in, as far as both say.

    Raises:
        CheckpointError: it is another one's.
    """
    if not isinstance(recipe, dict) or not (path.parent / CONFIG).is_file():
        return
    said = read_json(path.parent / CONFIG)
    shared = (recipe.keys() & said.keys()) - OF_THE_PLACE
    differ = sorted(name for name in shared if recipe[name] != said[name])
    if differ:
        changes = ", ".join(f"{name} {said[name]!r} there, {recipe[name]!r} here" for name in differ)
        raise CheckpointError(f"{path} is not of the run that {CONFIG} beside it says ({changes})")


def check_folder(folder: Path, recipe: dict[str, Any]) -> None:
    """See that a folder holds no run of another recipe.

    Raises:
        BadInput: it does.
    """
    if not (folder / CONFIG).exists():
        return
    before = read_json(folder / CONFIG)
    differ = sorted(name for name in before.keys() | recipe.keys() if before.get(name) != recipe.get(name))
    if differ:
        changes = ", ".join(f"{name} {before.get(name)!r} -> {recipe.get(name)!r}" for name in differ)
        raise BadInput(
            f"{folder} holds a run of another recipe ({changes}); take another folder or say --fresh"
        )


@contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """Hold a run folder for one run; what one that was killed left half-written is taken away.

    The lock is the system's, so a process that is killed lets go of it.

    Raises:
        CheckpointError: another run holds it.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> with TemporaryDirectory() as folder, alone_in(Path(folder)):
        ...     with alone_in(Path(folder)):
        ...         pass
        Traceback (most recent call last):
        kernelhead.errors.CheckpointError: another run is training into ...
    """
    handle = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise CheckpointError(
                f"another run is training into {folder}; wait for it, or take another folder"
            ) from None
        for name in (*LEFT_BY_A_RUN, REPORT):
            for left in folder.glob(f".{name}.*"):
                take_away(left)
        yield
    finally:
        os.close(handle)


def reset_peak(device: torch.device) -> None:
    """Begin to watch the most memory of a device."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)


def peak_on(device: torch.device) -> float:
    """Most MiB in use so far: of the device where there is one, else of this process."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 2**20
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (2**20 if platform.system() == "Darwin" else 2**10)


def machine_of(device: torch.device) -> dict[str, str]:
    """System, device and threads of a run."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.machine()
    return {"system": platform.system(), "device": name, "threads": str(torch.get_num_threads())}


def versions_here() -> dict[str, str]:
    """Of Python and of what a run is computed with."""
    found = {"python": platform.python_version()}
    for package in ("kernelhead", "torch", "numpy"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "from source"
    return found
