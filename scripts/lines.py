"""How many lines of the package the tests ran: a page from what slipcover counted, and whether it is enough.

python scripts/lines.py lines.json lines.txt --least 90
"""

import argparse
import json
import sys
from itertools import groupby
from pathlib import Path
from typing import Any

PACKAGE = "kernelhead/"


def page_of(files: dict[str, Any]) -> str:
    """A line for every room and under it one for every file, with the lines that nothing ran."""
    named = sorted((name.rpartition(PACKAGE)[2], found) for name, found in files.items())
    parts = []
    for room, members in groupby(named, key=lambda each: each[0].partition("/")[0]):
        held = list(members)
        parts.append(f"{share([found for _, found in held]):6.1f} %  {room}")
        for name, found in held:
            missing = " ".join(spans(found["missing_lines"]))
            parts.append(f"{share([found]):6.1f} %      {name}  {missing}".rstrip())
    return "\n".join(parts) + "\n"


def share(found: list[dict[str, Any]]) -> float:
    """Lines that ran, in % of all."""
    ran = sum(len(each["executed_lines"]) for each in found)
    return 100 * ran / max(1, ran + sum(len(each["missing_lines"]) for each in found))


def spans(lines: list[int]) -> list[str]:
    """Lines in a row as one: 3-5 7."""
    made: list[list[int]] = []
    for line in sorted(lines):
        if made and line == made[-1][-1] + 1:
            made[-1].append(line)
        else:
            made.append([line])
    return [str(each[0]) if len(each) == 1 else f"{each[0]}-{each[-1]}" for each in made]


def main() -> int:
    """Write the page; 1 where too few lines ran."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("counted", type=Path)
    parser.add_argument("page", type=Path)
    parser.add_argument("--least", type=float, default=90.0, metavar="PERCENT")
    asked = parser.parse_args()
    files = json.loads(asked.counted.read_text(encoding="utf-8"))["files"]
    there = {path.resolve() for path in Path("src").rglob("*.py")}
    if unseen := there - {Path(name).resolve() for name in files}:
        print(f"lines: {len(unseen)} files were not counted, such as {min(unseen)}", file=sys.stderr)
        return 1
    asked.page.write_text(page_of(files), encoding="utf-8")
    reached = share(list(files.values()))
    print(f"{reached:.1f} % of the lines of the package ran, {asked.least:g} % wanted; all in {asked.page}")
    return 0 if reached >= asked.least else 1


if __name__ == "__main__":
    sys.exit(main())
