"""Rules that read little of a sequence: yardsticks for networks, which may have learned no more."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernelhead.data import Tokens
from kernelhead.data.listops import END, OPERATORS, ZERO
from kernelhead.training.grid import Outcome

Counts = NDArray[np.int64]
Said = list[NDArray[np.integer[Any]]]


def first_token(train: Tokens, parts: list[Tokens]) -> Said:
    """The class that most training sequences with the same first token have, for every part."""
    counts = np.zeros((train.vocabulary, len(train.classes)))
    np.add.at(counts, (train.x[:, 0], train.y), 1)
    said = counts.argmax(1)
    return [said[part.x[:, 0]] for part in parts]


def first_level(train: Tokens, parts: list[Tokens]) -> Said:
    """What boosted trees say who know the outermost operation of a list and what its arguments begin with."""
    from sklearn.ensemble import HistGradientBoostingClassifier

    trees = HistGradientBoostingClassifier(categorical_features=[0], random_state=0)
    trees.fit(outermost(train.x), train.y)
    return [trees.predict(outermost(part.x)) for part in parts]


def outermost(x: NDArray[np.integer[Any]], *, rows: int = 4096) -> Counts:
    """The operation of each list, and how many of its arguments are each digit and each operation.

    Shapes: x (n, t) tokens of ListOps; returns (n, 15): a token, ten counts and four.

    Args:
        x: lists, 0 behind their ends.
        rows: of them at a time.

    Example:
        >>> from kernelhead.data import listops
        >>> words = "[MAX 2 [MIN 7 7 ] 2 ]".split()
        >>> outermost(np.array([[listops.VOCABULARY.index(word) for word in words]])).tolist()
        [[2, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0]]
    """
    return np.concatenate([_outermost(x[at : at + rows]) for at in range(0, len(x), rows)])


def _outermost(x: NDArray[np.integer[Any]]) -> Counts:
    operators = range(1, len(OPERATORS) + 1)
    opened = np.isin(x, operators)
    open_lists = np.cumsum(opened, axis=1) - np.cumsum(x == END, axis=1)
    before = open_lists - opened  # a list that begins here is not yet open
    columns = [x[:, 0].astype(np.int64)]
    columns += [((x == token) & (before == 1)).sum(1) for token in (*range(ZERO, ZERO + 10), *operators)]
    return np.stack(columns, axis=1)


@dataclass(frozen=True)
class Rule:
    """From the training part to what is said of other parts, and the sets of which that makes sense."""

    say: Callable[[Tokens, list[Tokens]], Said]
    sets: tuple[str, ...]


RULES = {
    "first token": Rule(first_token, ("ListOps", "Text", "Image", "Pathfinder")),
    "first level": Rule(first_level, ("ListOps",)),
}


def rule_run(name: str, train: Tokens, valid: Tokens, test: Tokens) -> Outcome:
    """What a rule gets of the validation and the test part."""
    parts = {"test": test, "valid": valid}
    said = dict(zip(parts, RULES[name].say(train, [*parts.values()]), strict=True))
    shares = {f"{part}_accuracy": float((said[part] == parts[part].y).mean()) for part in parts}
    return Outcome({**shares, "train_cases": float(len(train))})
