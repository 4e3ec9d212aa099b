"""Rows of a CSV file by the names of their columns, with the place to name when something is wrong."""

import csv
from codecs import BOM_UTF8
from collections.abc import Callable, Iterator
from io import StringIO
from pathlib import Path

from kernelhead.errors import BadInput


def csv_rows(
    who: str, path: Path, check_header: Callable[[str, list[str]], None]
) -> Iterator[tuple[str, dict[str, str]]]:
    """Every row that is not empty, by column, after who reads it and in which line it ends.

    Args:
        who: reads the file, for its complaints.
        path: of the file, in UTF-8.
        check_header: is given the place and the names of the first line, and complains where it must.

    Raises:
        BadInput: the file is not such a file, or a row has more or fewer fields than the header.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> with TemporaryDirectory() as folder:
        ...     _ = (Path(folder) / "two.csv").write_text("a, b\\n1,2\\n")
        ...     [row for _, row in csv_rows("example", Path(folder) / "two.csv", lambda *_: None)]
        [{'a': '1', 'b': '2'}]
    """
    reader = csv.reader(StringIO(_text(who, path), newline=""), strict=True)
    try:
        header = [name.strip() for name in next(reader, [])]
        check_header(f"{who}: {path}, line 1", header)
        for fields in reader:
            where = f"{who}: {path}, line {reader.line_num}"
            if fields and len(fields) != len(header):
                raise BadInput(f"{where}: {len(fields)} fields, expected {len(header)} as in the header")
            if fields:
                yield where, dict(zip(header, map(str.strip, fields), strict=True))
    except csv.Error as error:
        raise BadInput(f"{who}: {path}, line {reader.line_num}: {error}") from error


def _text(who: str, path: Path) -> str:
    raw = path.read_bytes().removeprefix(BOM_UTF8)
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise BadInput(f"{who}: {path}, line {line}: {error.reason} in UTF-8") from error
