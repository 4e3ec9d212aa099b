"""Types of arguments that are places in the file system, by names that help can show."""

import os
from pathlib import Path

from kernelhead.errors import BadInput


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


FILE, FOLDER = Place("FILE"), Place("FOLDER")
