"""What a run says of where it computed, and whether a folder is its own."""

import platform
import resource
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from kernelhead.errors import BadInput
from kernelhead.records import CONFIG, read_json


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
