"""Draws docs/architecture.svg and docs/walk.svg: `python scripts/pictures.py`, with nothing installed.

Colours follow the reader's light or dark setting; titles and descriptions are read out by screen readers.
"""

from html import escape
from pathlib import Path

DOCS = Path(__file__).parent.parent / "docs"
STYLE = """
    svg { --page: #ffffff; --ink: #1b1f24; --soft: #57606a; --line: #8c959f; --box: #f2f4f6;
          --build: #dbeafe; --factor: #dcf5e3; --apply: #fdecc8; --read: #f3defa; }
    @media (prefers-color-scheme: dark) {
      svg { --page: #0d1117; --ink: #e6edf3; --soft: #a3adb8; --line: #6e7681; --box: #1c232c;
            --build: #16345c; --factor: #14402a; --apply: #4d3908; --read: #43205a; }
    }
    .page { fill: var(--page); }
    text { font-family: system-ui, sans-serif; font-size: 14px; fill: var(--ink); }
    .code { font-family: ui-monospace, monospace; font-size: 13px; }
    .soft { fill: var(--soft); font-size: 12.5px; }
    .verb { font-weight: 600; font-size: 15px; }
    rect.room { fill: var(--box); stroke: var(--line); }
    rect.build { fill: var(--build); } rect.factor { fill: var(--factor); }
    rect.apply { fill: var(--apply); } rect.read { fill: var(--read); }
    path { stroke: var(--line); fill: none; stroke-width: 1.5; }
    marker path { fill: var(--line); stroke: none; }
"""
ARROW = (
    '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" '
    'orient="auto-start-reverse"><path d="M0 0 8 4 0 8z"/></marker></defs>'
)
FLOORS = (
    ("10", ("cli",)),
    ("9", ("estimators",)),
    ("8", ("training",)),
    ("7", ("models", "surgery", "inspection")),
    ("6", ("nn",)),
    ("5", ("ops",)),
    ("4", ("decomposition",)),
    ("3", ("kernels",)),
    ("2", ("pattern", "data", "report")),
    ("1", ("shapes", "rng", "records", "units")),
    ("0", ("errors",)),
)
VERB = {"kernels": "build", "decomposition": "factor", "ops": "apply", "nn": "apply", "inspection": "read"}
WORDS = {
    "cli": "kernelhead VERB",
    "estimators": "fit, predict: scikit-learn and aeon",
    "training": "one loop, one ledger",
    "nn": "modules, and the tape that records them",
    "ops": "functions: plain PyTorch, Triton on a GPU",
    "decomposition": "K = U S V', kernel PCA, low rank plus sparse",
    "kernels": "points in, features or entries out",
}


def text(x: float, y: float, words: str, kind: str = "", anchor: str = "start") -> str:
    """A line of text."""
    return f'<text x="{x:g}" y="{y:g}" class="{kind}" text-anchor="{anchor}">{escape(words)}</text>'


def box(x: float, y: float, width: float, height: float, kind: str = "") -> str:
    """A room with round corners."""
    size = f'x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}"'
    return f'<rect {size} rx="5" class="{f"room {kind}".strip()}"/>'


def arrow(*points: tuple[float, float]) -> str:
    """A line through points with a tip at the last."""
    first, *rest = (f"{x:g} {y:g}" for x, y in points)
    return f'<path d="M{first} {" ".join(f"L{each}" for each in rest)}" marker-end="url(#tip)"/>'


def page(width: int, height: int, title: str, description: str, parts: list[str]) -> str:
    """The whole file."""
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
        f'height="{height}" role="img" aria-labelledby="title desc">'
    )
    named = f'<title id="title">{escape(title)}</title>\n<desc id="desc">{escape(description)}</desc>'
    back = f'<rect class="page" width="{width}" height="{height}"/>'
    return "\n".join([head, named, f"<style>{STYLE}</style>", ARROW, back, *parts, "</svg>", ""])


def architecture() -> str:
    """The floors of the house, with the four verbs at their rooms."""
    left, wide, high, gap = 64, 500, 38, 8
    parts = [text(left, 26, "A room imports from lower floors only.", "soft")]
    parts.append(text(left + wide + 24, 26, "four verbs of one noun", "soft"))
    for row, (floor, rooms) in enumerate(FLOORS):
        y = 40 + row * (high + gap)
        parts.append(text(left - 16, y + 24, floor, "soft", "end"))
        each = (wide - gap * (len(rooms) - 1)) / len(rooms)
        for place, room in enumerate(rooms):
            x = left + place * (each + gap)
            parts += [box(x, y, each, high, VERB.get(room, "")), text(x + 12, y + 24, room, "code")]
            if room in WORDS:
                parts.append(text(x + each - 12, y + 24, WORDS[room], "soft", "end"))
    at = {room: 40 + row * (high + gap) for row, (_, rooms) in enumerate(FLOORS) for room in rooms}
    said = {
        "read": (at["inspection"], "spectrum, flow, graph"),
        "apply": ((at["nn"] + at["ops"]) / 2, "to values, with gradients"),
        "factor": (at["decomposition"], "singular values and vectors"),
        "build": (at["kernels"], "two sides, two feature maps"),
        "": (at["pattern"], "the pattern: Dense, Factored"),
    }
    for verb, (y, words) in said.items():
        if verb:
            parts.append(text(left + wide + 24, y + 16, verb, "verb"))
        parts.append(text(left + wide + 24, y + (33 if verb else 24), words, "soft"))
    description = (
        "Eleven floors from errors at the bottom to the command line at the top. Kernels build a pattern, "
        "decomposition factors it, ops and nn apply it, inspection reads it. Rooms import downwards only."
    )
    return page(800, 40 + len(FLOORS) * (high + gap) + 10, "The rooms of kernelhead", description, parts)


def walk() -> str:
    """One tensor through a primal layer, and what a tape keeps beside it."""
    steps = [
        ("", "x", "(2, 197, 384)", "2 series of 197 points"),
        ("apply", "nn/primal", "q, k (2, 6, 197, 64)", "project, split into 6 heads"),
        ("build", "kernels", "features (2, 6, 197, 64)", "every row on the unit sphere"),
        ("apply", "ops/primal", "maps (2, 6, 64, 64)", "64 landmarks fold the weights, rank 30"),
        ("apply", "ops/primal", "outputs (2, 6, 197, 64)", "features times a map: no 197 by 197"),
        ("apply", "nn/primal", "(2, 197, 384)", "merge heads, project"),
    ]
    side = {
        3: ("factor", "decomposition", "moments (2, 6, 30)", "J, one scalar for the loss"),
        4: ("read", "inspection", "30 values a head", "spectrum, flow, graph of the pattern"),
        5: ("", "records, report", "numbers, then one page", "no tensors from here on"),
    }
    x, wide, high, gap, far = 24, 340, 62, 26, 436
    parts = [text(x, 28, "forward", "verb"), text(far, 28, "inside with record(model) as tape:", "code")]

    def room(left: float, row: int, kind: str, who: str, shape: str, words: str) -> None:
        y = 44 + row * (high + gap)
        parts.append(box(left, y, wide, high, kind))
        parts.append(text(left + 12, y + 25, who, "code"))
        parts.append(text(left + wide - 12, y + 25, shape, "code", "end"))
        parts.append(text(left + 12, y + 48, words, "soft"))

    for row, step in enumerate(steps):
        room(x, row, *step)
        if row:
            y = 44 + row * (high + gap)
            parts.append(arrow((x + wide / 2, y - gap + 2), (x + wide / 2, y - 3)))
    for row, step in side.items():
        room(far, row, *step)
        if row < 5:
            y = 44 + row * (high + gap) + high / 2
            parts.append(arrow((x + wide + 2, y), (far - 3, y)))
        if row > 4:
            y = 44 + row * (high + gap)
            parts.append(arrow((far + wide / 2, y - gap + 2), (far + wide / 2, y - 3)))
    description = (
        "A tensor of 2 series, 197 points and 384 features is projected to queries and keys of 6 heads, put "
        "on the unit sphere, multiplied by one folded 64 by 64 map a head and projected back. A tape keeps "
        "second moments, from which the objective J is made, and patterns, which inspection reads."
    )
    return page(800, 44 + len(steps) * (high + gap), "The walk of one tensor", description, parts)


PICTURES = {"architecture.svg": architecture, "walk.svg": walk}

if __name__ == "__main__":
    for name, draw in PICTURES.items():
        (DOCS / name).write_text(draw(), encoding="utf-8")
