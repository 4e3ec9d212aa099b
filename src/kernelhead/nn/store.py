"""Tensors on disk: safetensors, written whole or not at all, read with a sentence."""

from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

from torch import Tensor

from kernelhead.errors import CheckpointError, missing_extra
from kernelhead.records import write_atomically


def write_tensors(path: Path, tensors: Mapping[str, Tensor], facts: dict[str, str] | None = None) -> None:
    """Write tensors to a safetensors file, with words about them beside; nothing is pickled.

    Raises:
        CheckpointError: the file cannot be written.
        MissingExtra: safetensors is not installed.

    Example:
        >>> import torch
        >>> from tempfile import TemporaryDirectory
        >>> with TemporaryDirectory() as folder:
        ...     write_tensors(Path(folder) / "a.safetensors", {"a": torch.zeros(2)})
        ...     print([file.name for file in Path(folder).iterdir()])
        ['a.safetensors']
    """
    try:
        from safetensors import SafetensorError
        from safetensors.torch import save_file
    except ImportError:
        raise missing_extra("write_tensors", "safetensors", "cli") from None
    # Tied weights share memory, which the format does not know.
    ready = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}

    def write(to: Path) -> None:
        # The library first writes to a name that it makes up: in a folder that says whose it is.
        with TemporaryDirectory(dir=to.parent, prefix=f"{to.name}.") as folder:
            inside = Path(folder) / to.name
            save_file(ready, inside, metadata=facts)
            inside.replace(to)

    try:
        write_atomically(path, write)
    except SafetensorError as error:
        raise CheckpointError(f"cannot write {path}: {error}") from error


def read_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The tensors of a safetensors file, and the words about them.

    Raises:
        CheckpointError: the file is missing or cut short.
        MissingExtra: safetensors is not installed.
    """
    try:
        from safetensors import SafetensorError, safe_open
    except ImportError:
        raise missing_extra("read_tensors", "safetensors", "cli") from None
    if not path.is_file():
        raise CheckpointError(f"{path} " + ("is a folder" if path.is_dir() else "does not exist"))
    try:
        with safe_open(path, framework="pt") as opened:
            tensors = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
            return tensors, opened.metadata() or {}
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{path} is not a whole safetensors file: {error}") from error
