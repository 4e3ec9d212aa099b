"""Types of arguments that are places in the file system, by names that help can show."""

import os
from pathlib import Path

from kernelhead.errors import BadInput
from kernelhead.records import CONFIG, read_json

SIGNED = {"name", "data"}  # all that the configuration of a folder of records says


class Place:
    """Turns a word of the command line into a path; help shows it by its name.

    Example:
        >>> FOLDER, FOLDER("runs/mine").name
        (FOLDER, 'mine')
    """

    def __init__(self, name: str) -> None:
        self.name = name

    def __call__(self, word: str | Path) -> Path:
        """The path that a word names."""
        return Path(word)

    def __repr__(self) -> str:
        return self.name


def check_place(who: str, file: Path) -> None:
    """Complain at once where a file could not be written in the end.

    Raises:
        BadInput: it is a folder, or the folder it goes to is none or cannot be written.
    """
    folder = next((each for each in file.absolute().parents if each.exists()), file)
    if file.is_dir() or not folder.is_dir() or not os.access(folder, os.W_OK | os.X_OK):
        raise BadInput(f"{who}: {file} cannot be written: it is a folder, or is in no folder that can be")


def check_records(who: str, folder: Path, model: str) -> None:
    """Complain at once where records of a model would come to lie beside others than its own.

    Raises:
        BadInput: the folder holds a model, trained here or not, or records of another one.
    """
    held = read_json(folder / CONFIG) if (folder / CONFIG).is_file() else {}
    if held.keys() - SIGNED:
        raise BadInput(f"{who}: {folder} holds a model, expected another folder for the records")
    if held.get("name", model) != model:
        raise BadInput(
            f"{who}: {folder} holds records of {held['name']}, expected another folder for those of {model}"
        )


FILE, FOLDER = Place("FILE"), Place("FOLDER")
