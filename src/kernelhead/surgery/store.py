"""Grafts on disk: the added weights in safetensors, with a manifest that rebuilds them on a fresh host."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, replace
from functools import partial
from hashlib import sha256
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from kernelhead import __version__
from kernelhead.errors import BadInput, CheckpointError, KernelheadError
from kernelhead.nn.cores import AbstractCore, core_of
from kernelhead.nn.store import read_tensors, write_tensors
from kernelhead.records import plain
from kernelhead.surgery.graft import CHILD, Planned, described, grafts, like, place, restore
from kernelhead.surgery.report import Graft, Report
from kernelhead.surgery.sites import sites_for

#: version of the manifest; a newer one is refused.
FORMAT = 1
# The entry of the file's metadata that holds the manifest.
_KEY = "kernelhead.graft"
_LIBRARIES = ("torch", "transformers", "timm")
_NEEDED = {"host": str, "host_weights": str, "weights": str, "whole": bool, "grafts": list}
_NEEDED_OF_EACH = {"path": str, "method": str, "options": dict, "heads": int, "head": int, "seed": int}


def save(model: nn.Module, file: str | Path, *, whole: bool = False) -> None:
    """Write the grafts of a model to a safetensors file, whole or not at all; nothing is pickled.

    Without `whole` the file holds the added weights only and belongs to a host with the very weights
    that this one has now; give `whole` where the host was trained too.

    Args:
        model: a grafted model.
        file: where to; an existing file is replaced.
        whole: also write the host's weights.

    Raises:
        BadInput: nothing is grafted.
        CheckpointError: the file cannot be written.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> from kernelhead.surgery import graft
        >>> host, other = (nn.TransformerEncoderLayer(8, 2, 16, batch_first=True) for _ in "12")
        >>> _ = graft(host, "rpc")
        >>> with TemporaryDirectory() as folder:
        ...     save(host, f"{folder}/rpc.safetensors", whole=True)
        ...     print(load(other, f"{folder}/rpc.safetensors"))
        load: 1 attention, ... parameters
          self_attn (MultiheadAttention, torch): rpc, ... parameters added
    """
    found = grafts(model)
    if not found:
        raise BadInput(f"save: nothing is grafted in this {type(model).__name__}")
    added, own = _split(model, found)
    kept = {**added, **(own if whole else {})}
    manifest = {
        "format": FORMAT,
        "versions": {"kernelhead": __version__, **_versions()},
        "host": _name_of(model),
        "host_weights": checksum(own),
        "weights": checksum(kept),
        "whole": whole,
        "grafts": [{**asdict(each), **_sizes(model, each)} for each in found.values()],
    }
    write_tensors(Path(file), kept, {_KEY: json.dumps(manifest, default=plain)})


def load(host: nn.Module, file: str | Path, *, strict: bool = True) -> Report:
    """Graft a host as a file says, with the weights that the file holds.

    Grafts that are there already are taken out first. Nothing is changed where an error is raised.

    Args:
        host: a model built as the saved one was.
        file: what `save` wrote.
        strict: refuse a host of another class, or with other weights where the file holds only what
            was added; sizes and paths must fit in any case.

    Raises:
        CheckpointError: the file is missing, cut short, changed or not ours, or does not fit the host.
    """
    path = Path(file)
    manifest, tensors = _read(path)
    found = grafts(host)
    _, own = _split(host, found)
    if strict and manifest["host"] != _name_of(host):
        raise CheckpointError(f"{path} was saved from a {manifest['host']}, this is a {_name_of(host)}")
    if strict and not manifest["whole"] and manifest["host_weights"] != checksum(own):
        raise CheckpointError(
            f"{path} holds only what was added to a host whose weights differ from these; "
            "save with whole=True, or load with strict=False"
        )
    prefixes = _prefixes(each["path"] for each in manifest["grafts"])
    whole = {name: tensor for name, tensor in tensors.items() if not name.startswith(prefixes)}
    if manifest["whole"]:
        _check(path, whole, own)
    planned = [_planned(path, host, each, tensors) for each in manifest["grafts"]]
    replaced = tuple(plan.site.path for plan in planned if plan.site.path in found)
    restore(host)
    if manifest["whole"]:
        # All tensors of the host are there; what it keeps beside tensors stays its own.
        host.load_state_dict(whole, strict=False)
    done = tuple(place(host, plan) for plan in planned)
    return Report("load", done, replaced)


def checksum(tensors: Mapping[str, Tensor]) -> str:
    """A digest of names, sizes, precisions and every bit of some tensors.

    Example:
        >>> checksum({"a": torch.zeros(2)}) == checksum({"a": torch.zeros(2)})
        True
        >>> checksum({"a": torch.zeros(2)}) == checksum({"a": -torch.zeros(2)})
        False
    """
    digest = sha256()
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu().contiguous()
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)} ".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _split(model: nn.Module, found: Mapping[str, Graft]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """The state of a model: what grafts added, and what is the host's own."""
    grafted = {model.get_submodule(path) for path in found}
    # A module that stands in several places has its weights under all of their names.
    places = [path for path, each in model.named_modules(remove_duplicate=False) if each in grafted]
    state = {name: value for name, value in model.state_dict().items() if isinstance(value, Tensor)}
    added = {name: value for name, value in state.items() if name.startswith(_prefixes(found))}
    again = _prefixes(places)
    return added, {name: value for name, value in state.items() if not name.startswith(again)}


def _prefixes(paths: Iterable[str]) -> tuple[str, ...]:
    """How the names of all that was added at some paths begin."""
    return tuple(f"{path}.{CHILD}.".lstrip(".") for path in paths)


def _sizes(model: nn.Module, each: Graft) -> dict[str, int]:
    core: AbstractCore = getattr(model.get_submodule(each.path), CHILD)
    return {"heads": core.heads, "head": core.head}


def _versions() -> dict[str, str]:
    found = {}
    for name in _LIBRARIES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def _name_of(model: nn.Module) -> str:
    return f"{type(model).__module__}.{type(model).__qualname__}"


def _read(path: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    tensors, facts = read_tensors(path)
    text = facts.get(_KEY)
    if text is None:
        raise CheckpointError(f"{path} holds no graft: it has no manifest of kernelhead")
    try:
        manifest = json.loads(text)
        if _has(manifest, {"format": int})["format"] > FORMAT:
            raise CheckpointError(
                f"{path} has format {manifest['format']}, newer than {FORMAT}: update kernelhead"
            )
        for each in _has(manifest, _NEEDED)["grafts"]:
            _has(each, _NEEDED_OF_EACH)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path} has a manifest that cannot be read: {error}") from error
    if manifest["weights"] != checksum(tensors):
        raise CheckpointError(f"{path} is damaged: its weights are not those that were saved")
    return manifest, tensors


def _has(entry: Any, needed: Mapping[str, type]) -> dict[str, Any]:
    """The same object, where it has what is needed."""
    for name, kind in needed.items():
        if not isinstance(entry, dict) or not isinstance(entry.get(name), kind):
            raise ValueError(f"{name!r} is not there or is no {kind.__name__}")
    return entry


def _check(path: Path, given: Mapping[str, Tensor], own: Mapping[str, Tensor]) -> None:
    """Names and shapes must agree."""
    for name in sorted(given.keys() | own.keys()):
        if name not in given or name not in own:
            where = "the file" if name not in given else "the model"
            raise CheckpointError(f"{path} does not fit the model: {name!r} is not in {where}")
        if given[name].shape != own[name].shape:
            here, there = tuple(own[name].shape), tuple(given[name].shape)
            raise CheckpointError(f"{path} does not fit the model: {name!r} is {there}, expected {here}")


def _planned(path: Path, host: nn.Module, each: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Planned:
    """The core that one entry of a manifest describes, with its weights, for its place in the host."""
    site = next((site for site in sites_for(host, True) if site.path == each["path"]), None)
    if site is None or site.reason is not None:
        why = "there is no attention" if site is None else f"is one that cannot be grafted: it {site.reason}"
        raise CheckpointError(f"{path} does not fit the model: at {each['path']!r} {why}")
    sizes = (site.heads, site.head)
    if sizes != (each["heads"], each["head"]):
        raise CheckpointError(
            f"{path} does not fit the model: {each['path']!r} has {sizes[0]} heads of {sizes[1]}, "
            f"expected {each['heads']} of {each['head']}"
        )
    prefix = f"{each['path']}.{CHILD}.".lstrip(".")
    state = {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}
    make = partial(core_of, each["method"], heads=site.heads, head=site.head, **each["options"])
    try:
        # Without memory first: sizes that a manifest says and its weights do not have cost nothing.
        with torch.device("meta"):
            expected = make().state_dict()
    except (KernelheadError, ArithmeticError, TypeError, ValueError, RuntimeError) as error:
        why = (str(error).splitlines() or [""])[0]
        raise CheckpointError(f"{path} asks for a core that this version does not build: {why}") from error
    _check(path, state, expected)
    core = like(make(), site.module)
    core.load_state_dict(state)
    fit = each.get("fit")
    return Planned(site, core, replace(described(host, site, core, each["method"], each["seed"]), fit=fit))
