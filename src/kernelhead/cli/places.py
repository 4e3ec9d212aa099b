"""Types of arguments that are places in the file system, by names that help can show."""

from pathlib import Path


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


FILE, FOLDER = Place("FILE"), Place("FOLDER")
