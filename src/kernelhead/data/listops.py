"""Nested lists of operations on digits: the file, a generator by the published rules, an evaluator."""

from collections.abc import Sequence
from functools import partial
from io import BytesIO
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kernelhead.data.sources import check_part, in_part, made_once, read_checked, root_of
from kernelhead.data.tokens import Tokens
from kernelhead.errors import BadInput
from kernelhead.shapes import check_size

# First 16 hexadecimal digits of the SHA-256 of every file.
DIGESTS = {"listops/train.npz": "db16806bf5f704fa", "listops/test.npz": "3ddef8f01ccaabef"}
OPERATORS = ("[MIN", "[MAX", "[MED", "[SM")
END, ZERO = 5, 6
VOCABULARY = ("<pad>", *OPERATORS, "]", *"0123456789")
CLASSES = tuple("0123456789")
LONGEST = 2000
# Chance that a node above the deepest level is an operation.
NESTED = 0.25
# Trees in a row that may miss the lengths asked for.
PATIENCE = 100_000


class _Level(NamedTuple):
    """The nodes of one depth from left to right: tokens (n,), and children (n,), 0 for a digit."""

    tokens: NDArray[np.int64]
    children: NDArray[np.int64]


def read_listops(
    split: str = "train",
    *,
    root: str | Path | None = None,
    validation: float = 0.1,
    seed: int = 0,
    drawn: int = 0,
) -> Tokens:
    """Read the lists of operations, 6,000 for training and 2,000 for testing; the label is the value.

    The validation part is cut from the training part. The 1,000 that the folder keeps for validation
    are not read. The arena has 96,000 lists for training: so many can be `drawn`, which takes minutes
    the first time (see `made_once`).

    Shapes: x (n, 2000) in uint8, positions in `VOCABULARY`.

    Args:
        split: train, validation or test.
        root: folder of data sets; the environment variable KERNELHEAD_DATA if left out.
        validation: share of every class that is held out; 0 keeps all for training.
        seed: names the draw of the validation part.
        drawn: how many lists of `draw_listops`, seed 0, are in place of the 6,000; 0 for none.

    Raises:
        BadInput: a file is missing or is another one, or a number is out of range.
        UnknownName: there is no such split.
    """
    who = "read_listops"
    place = f"listops/{check_part(who, split)}.npz"
    if check_size(who, "drawn", drawn, least=0) and split != "test":
        folder = root_of(who, place, root) / "listops"
        content: BytesIO | Path = made_once(folder, f"drawn-{drawn}.npz", partial(_write_drawn, drawn))
    else:
        content = BytesIO(read_checked(who, place, DIGESTS[place], root))
    with np.load(content, allow_pickle=False) as file:
        tokens, lengths, y = file["tokens"], file["length"].astype(np.int64), file["y"].astype(np.int64)
    chosen = in_part(who, y, split, validation=validation, seed=seed)
    cases = np.split(tokens, np.cumsum(lengths)[:-1])
    return _padded([cases[i] for i in np.flatnonzero(chosen)], y[chosen], LONGEST)


def _write_drawn(count: int, path: Path) -> None:
    drawn = draw_listops(count, seed=0)
    real = drawn.x[np.arange(drawn.longest) < drawn.lengths[:, None]]
    with path.open("wb") as file:
        np.savez_compressed(
            file, tokens=real, length=drawn.lengths.astype(np.int16), y=drawn.y.astype(np.uint8)
        )


def draw_listops(
    count: int,
    *,
    seed: int,
    depth: int = 10,
    arguments: int = 10,
    shortest: int = 500,
    longest: int = LONGEST,
) -> Tokens:
    """Draw distinct lists of operations by the published rules; the label is the value.

    A node above the deepest level is an operation with chance 0.25, one of minimum, maximum, median
    and sum modulo ten, on 2 to `arguments` nodes; the others are digits. Trees whose length is not
    strictly between `shortest` and `longest` are drawn again. A smaller count gives the first of a
    larger one.

    Shapes: x (count, longest) in uint8, positions in `VOCABULARY`.

    Args:
        count: how many lists.
        seed: names the draw.
        depth: levels of the deepest tree.
        arguments: most arguments of an operation.
        shortest: a list has more tokens than these.
        longest: a list has fewer tokens than these.

    Raises:
        BadInput: a number is out of range, or no tree has such a length.

    Example:
        >>> drawn = draw_listops(3, seed=1, depth=3, arguments=3, shortest=5, longest=20)
        >>> text = " ".join(VOCABULARY[token] for token in drawn.x[0, : drawn.lengths[0]])
        >>> text, int(drawn.y[0]), listops_value(drawn.x[0])
        ('[MIN 3 [SM 7 5 ] ]', 2, 2)
    """
    who = "draw_listops"
    for name, size, least in (
        ("count", count, 1),
        ("depth", depth, 1),
        ("arguments", arguments, 2),
        ("shortest", shortest, 0),
        ("longest", longest, 2),
    ):
        check_size(who, name, size, least=least)
    draws = np.random.Generator(np.random.Philox(check_size(who, "seed", seed, least=0)))
    found: dict[bytes, int] = {}
    missed = 0
    while len(found) < count:
        levels = _drawn_tree(draws, depth, arguments, longest)
        text, value = _written(levels) if shortest < _length(levels) < longest else (b"", 0)
        missed = 0 if text and text not in found else missed + 1
        if missed == PATIENCE:
            raise BadInput(
                f"{who}: {PATIENCE} trees in a row gave no new list of more than {shortest} and fewer than "
                f"{longest} tokens; {len(found)} of {count} were found"
            )
        if not missed:
            found[text] = value
    cases = [np.frombuffer(text, np.uint8) for text in found]
    return _padded(cases, np.array([*found.values()]), longest)


def listops_value(tokens: Sequence[int] | NDArray[np.integer[Any]]) -> int:
    """The value of a list of operations, read from left to right; padding behind it is skipped.

    Args:
        tokens: positions in `VOCABULARY`.

    Raises:
        BadInput: the tokens are not one whole list.

    Example:
        >>> listops_value([VOCABULARY.index(word) for word in "[MAX 2 [SM 5 9 ] 3 ]".split()])
        4
    """
    return _read(tokens, "listops_value")[0]


def listops_marks(tokens: Sequence[int] | NDArray[np.integer[Any]]) -> NDArray[np.int8]:
    """What is known of every token of a list of operations.

    - A digit: the value of its list so far, as if it ended there.
    - The end of a list: the value of that list.
    - An operation: 9 plus the lists that are open with it, 10 for the outermost.
    - Padding: -1.

    Args:
        tokens: positions in `VOCABULARY`.

    Raises:
        BadInput: the tokens are not one whole list.

    Example:
        >>> tokens = [VOCABULARY.index(word) for word in "[MAX 2 [SM 5 9 ] 3 ]".split()]
        >>> listops_marks(tokens).tolist()
        [10, 2, 11, 5, 4, 4, 4, 4]
    """
    made = np.full(len(tokens), -1, np.int8)
    for place, mark in _read(tokens, "listops_marks")[1]:
        made[place] = mark
    return made


def _read(tokens: Sequence[int] | NDArray[np.integer[Any]], who: str) -> tuple[int, list[tuple[int, int]]]:
    """The value, and of every token that is no padding its place and its mark."""
    open_lists: list[tuple[str, list[int]]] = []
    marks: list[tuple[int, int]] = []
    done: list[int] = []
    codes = [int(token) for token in tokens]
    for place, token in enumerate(codes):
        if not 0 <= token < len(VOCABULARY):
            raise BadInput(f"{who}: token {token} at place {place}, expected 0 to {len(VOCABULARY) - 1}")
    for place, word in [(place, VOCABULARY[token]) for place, token in enumerate(codes) if token]:
        if done:
            raise BadInput(f"{who}: {word!r} at place {place} stands behind the end of the list")
        if word in OPERATORS:
            open_lists.append((word, []))
            marks.append((place, 9 + len(open_lists)))
            continue
        if word == "]":
            if not open_lists or not open_lists[-1][1]:
                raise BadInput(f"{who}: ']' at place {place} ends no list with arguments")
            value = known = _applied(*open_lists.pop())
            (open_lists[-1][1] if open_lists else done).append(value)
        else:
            operation, arguments = open_lists[-1] if open_lists else ("", done)
            arguments.append(int(word))
            known = _applied(operation, arguments) if open_lists else int(word)
        marks.append((place, known))
    if not done:
        words = sum(token > 0 for token in codes)
        raise BadInput(f"{who}: {words} tokens leave {len(open_lists)} lists open, expected one value")
    return done[0], marks


def _applied(word: str, arguments: list[int]) -> int:
    """An operation on its arguments; the median of an even number is rounded down."""
    ranked, middle = sorted(arguments), len(arguments) // 2
    if word == "[MIN":
        return ranked[0]
    if word == "[MAX":
        return ranked[-1]
    if word == "[SM":
        return sum(arguments) % 10
    return ranked[middle] if len(ranked) % 2 else (ranked[middle - 1] + ranked[middle]) // 2


def _drawn_tree(draws: np.random.Generator, depth: int, arguments: int, longest: int) -> list[_Level]:
    """A tree level by level, left off once it is too long."""
    levels: list[_Level] = []
    nodes, length = 1, 0
    while nodes and length < longest:
        nested = draws.random(nodes) < (NESTED if len(levels) + 1 < depth else 0.0)
        operator = draws.integers(1, len(OPERATORS), nodes, endpoint=True)
        digit = draws.integers(ZERO, ZERO + 9, nodes, endpoint=True)
        children = draws.integers(2, arguments, nodes, endpoint=True) * nested
        levels.append(_Level(np.where(nested, operator, digit), children))
        length, nodes = length + nodes + int(nested.sum()), int(children.sum())
    return levels


def _length(levels: list[_Level]) -> int:
    """Tokens of a tree: one a digit, and an operator and an end an operation."""
    return sum(len(level.tokens) + int((level.children > 0).sum()) for level in levels)


def _written(levels: list[_Level]) -> tuple[bytes, int]:
    """The tokens of a tree and its value, from the deepest level up."""
    texts: list[bytes] = []
    values = np.zeros(0, np.int64)
    for level in reversed(levels):
        cuts = np.concatenate([[0], np.cumsum(level.children)]).tolist()
        spans = [slice(*pair) for pair in pairwise(cuts)]
        values = np.array(
            [
                token - ZERO if span.start == span.stop else _REDUCED[token - 1](values[span])
                for token, span in zip(level.tokens.tolist(), spans, strict=True)
            ]
        )
        texts = [
            bytes([token]) if span.start == span.stop else bytes([token, *b"".join(texts[span]), END])
            for token, span in zip(level.tokens.tolist(), spans, strict=True)
        ]
    return texts[0], int(values[0])


_REDUCED = (
    lambda values: int(values.min()),
    lambda values: int(values.max()),
    lambda values: int(np.median(values)),
    lambda values: int(values.sum() % 10),
)


def _padded(cases: list[NDArray[np.uint8]], y: NDArray[np.int64], longest: int) -> Tokens:
    x = np.zeros((len(cases), longest), np.uint8)
    for row, case in zip(x, cases, strict=True):
        row[: len(case)] = case
    return Tokens("listops", x, y, np.array([*map(len, cases)]), len(VOCABULARY), CLASSES)
