"""Models of others by name: a saved folder, one of timm, or a function that makes one; and their inputs."""

import json
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from textwrap import shorten
from typing import Any, overload

import numpy as np
import torch
from torch import Tensor, nn

from kernelhead.errors import BadInput, missing_extra
from kernelhead.nn.hosts import mend_torchvision
from kernelhead.nn.store import read_tensors, write_tensors
from kernelhead.shapes import check_size

Inputs = Tensor | dict[str, Tensor]
NAMED = "a folder with a config.json, timm:NAME, or package.module:function"


@dataclass(frozen=True, eq=False)
class Host:
    """A model in evaluation mode, and what turns text into its inputs, where it has such.

    Args:
        tokenizer: of a text, or None.
    """

    model: nn.Module
    tokenizer: Any = None


def is_host(name: str | Path) -> bool:
    """Whether a name can be one of `open_host`: not a folder of anything else.

    Example:
        >>> is_host("timm:vit_tiny_patch16_224"), is_host("runs/mine")
        (True, False)
    """
    config = Path(name) / "config.json"
    if not config.is_file():
        return ":" in str(name) and not Path(name).exists()
    try:
        held = json.loads(config.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(held, dict) and "model_type" in held


def open_host(name: str, *, weights: str | Path | None = None) -> Host:
    """A model by name; nothing is downloaded.

    Args:
        name: folder that Hugging Face saved a model to, "timm:" and a name of timm, or the dotted path of
            a module, a colon and a function that makes a model.
        weights: safetensors file for the last two, whose models are random without.

    Raises:
        BadInput: there is no such model, or the weights do not fit it.
        CheckpointError: the weights cannot be read.
        MissingExtra: the library is not installed.

    Example:
        >>> type(open_host("torch.nn:Identity").model).__name__
        'Identity'
    """
    if Path(name).is_dir():
        if weights is not None:
            raise BadInput(f"open_host: {name} has its own weights; leave out {weights}")
        return _saved(Path(name))
    model = _of_timm(name.removeprefix("timm:")) if name.startswith("timm:") else _made(name)
    if weights is not None:
        _load(model, Path(weights))
    return Host(model.eval())


def read_inputs(host: Host, file: str | Path, *, cases: int | None = None, length: int = 128) -> Inputs:
    """What a model is called with, from a file.

    Args:
        host: whose inputs they are.
        file: text, a case a line, for models with a tokeniser; or .npy or .npz, arrays with a case a
            row, which of .npz are passed by their names.
        cases: how many, from the first; all by default.
        length: tokens of a text, at most.

    Raises:
        BadInput: the file cannot be read, has no case, a size is below one, or the model came without a
            tokeniser.
    """
    path = Path(file)
    if cases is not None:
        check_size("read_inputs", "cases", cases)
    check_size("read_inputs", "length", length)
    if path.suffix in (".npy", ".npz"):
        return _arrays(path, cases)
    if host.tokenizer is None:
        raise BadInput(
            f"read_inputs: {path} is text, but the model came without a tokeniser; expected .npy or .npz"
        )
    try:
        lines = [line for line in path.read_text(encoding="utf-8").splitlines() if line.strip()][:cases]
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"read_inputs: {path} cannot be read as text: {_why(error)}") from error
    if not lines:
        raise BadInput(f"read_inputs: {path} has no line of text")
    if host.tokenizer.pad_token is None:
        host.tokenizer.pad_token = host.tokenizer.eos_token
    made = host.tokenizer(lines, padding=True, truncation=True, max_length=length, return_tensors="pt")
    return {name: made[name] for name in ("input_ids", "attention_mask")}


@overload
def batches(inputs: Tensor, size: int = 16) -> list[Tensor]: ...
@overload
def batches(inputs: dict[str, Tensor], size: int = 16) -> list[dict[str, Tensor]]: ...
def batches(inputs: Inputs, size: int = 16) -> list[Tensor] | list[dict[str, Tensor]]:
    """Inputs a few cases at a time.

    Args:
        size: cases of a batch.

    Example:
        >>> [len(part) for part in batches(torch.zeros(5, 2), 3)]
        [3, 2]
    """
    if isinstance(inputs, Tensor):
        return [*inputs.split(size)]
    parts = zip(*(tensor.split(size) for tensor in inputs.values()), strict=True)
    return [dict(zip(inputs, part, strict=True)) for part in parts]


def write_host(model: nn.Module, file: str | Path) -> None:
    """Write all weights of a model to a safetensors file, whole or not at all.

    Raises:
        CheckpointError: the file cannot be written.
        MissingExtra: safetensors is not installed.
    """
    write_tensors(Path(file), model.state_dict())


def _saved(folder: Path) -> Host:
    if not (folder / "config.json").is_file():
        raise BadInput(f"open_host: {folder} has no config.json, expected {NAMED}")
    try:
        import transformers
    except ImportError:
        raise missing_extra("open_host", "transformers", "hf") from None
    words = transformers.utils.logging
    bars, level = words.is_progress_bar_enabled(), words.get_verbosity()
    try:
        words.disable_progress_bar()
        words.set_verbosity_error()
        config = transformers.AutoConfig.from_pretrained(folder, local_files_only=True)
        kinds = [getattr(transformers, name, None) for name in config.architectures or ()]
        kind = next((each for each in kinds if each is not None), transformers.AutoModel)
        model = kind.from_pretrained(folder, local_files_only=True)
    except Exception as error:  # whatever a folder without a model makes it raise
        said = _words(error)
        raise BadInput(f"open_host: {folder} is no model that transformers can open: {said}") from error
    finally:
        words.set_verbosity(level)
        if bars:
            words.enable_progress_bar()
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True)
    except Exception:  # whatever a folder without a tokeniser makes it raise
        tokenizer = None
    # Some are made of nothing where a folder has none: they know no word.
    if tokenizer is not None and len(tokenizer) <= len(tokenizer.all_special_ids):
        tokenizer = None
    return Host(model.eval(), tokenizer)


def _of_timm(name: str) -> nn.Module:
    mend_torchvision()
    try:
        import timm
    except ImportError:
        raise missing_extra("open_host", "timm", "timm") from None
    try:
        model: nn.Module = timm.create_model(name, pretrained=False)
    except RuntimeError as error:
        raise BadInput(f"open_host: timm has no model {name!r}: {error}") from error
    return model


def _made(name: str) -> nn.Module:
    place, colon, function = name.partition(":")
    if not (place and colon and function):
        raise BadInput(f"open_host: there is no model {name!r}, expected {NAMED}")
    try:
        make = getattr(import_module(place), function)
    except Exception as error:  # whatever the module does
        raise BadInput(f"open_host: {name!r} cannot be imported: {_words(error)}") from error
    try:
        model = make()
    except Exception as error:  # whatever the function does
        raise BadInput(f"open_host: {name!r} cannot be called: {_words(error)}") from error
    if not isinstance(model, nn.Module):
        raise BadInput(f"open_host: {name!r} gave {type(model).__name__}, expected a module of torch")
    return model


def _load(model: nn.Module, path: Path) -> None:
    held, _ = read_tensors(path)
    try:
        model.load_state_dict(held)
    except RuntimeError as error:
        raise BadInput(f"open_host: {path} does not fit {type(model).__name__}: {_words(error)}") from error


def _arrays(path: Path, cases: int | None) -> Inputs:
    try:
        with path.open("rb") as opened:
            held = np.load(opened, allow_pickle=False)
            single = isinstance(held, np.ndarray)
            arrays = {path.stem: held} if single else {name: held[name] for name in held.files}
        tensors = {name: torch.from_numpy(np.ascontiguousarray(each)) for name, each in arrays.items()}
    except Exception as error:  # a hostile file can fail anywhere between zip, header and data
        raise BadInput(f"read_inputs: {path} cannot be read: {_why(error)}") from error
    counts = {len(each) if each.ndim else 0 for each in arrays.values()}
    if len(counts) != 1 or 0 in counts:
        raise BadInput(
            f"read_inputs: {path} has arrays of {sorted(counts)} cases, expected the same of all, not 0"
        )
    made = {name: each[:cases] for name, each in tensors.items()}
    return made[path.stem] if single else made


def _why(error: Exception) -> str:
    """What went wrong with a file that is already named."""
    return str(getattr(error, "strerror", None) or error)


def _words(error: Exception) -> str:
    """What an error of others says, in a line."""
    return shorten(f"{type(error).__name__}: {error}", 300)
