"""Rules that read little of a list: what they see, by a parser, and what they make of it."""

import numpy as np
import pytest

from kernelhead.data import Tokens, draw_listops
from kernelhead.data.listops import VOCABULARY
from kernelhead.training.rules import RULES, outermost, rule_run


def arguments(tokens: list[int]) -> list[str]:
    """First words of the arguments of a list, one token after the other."""
    found, depth = [], 0
    for word in (VOCABULARY[token] for token in tokens if token):
        if depth == 1 and word != "]":
            found.append(word)
        depth += word.startswith("[") - (word == "]")
    return found


def test_counts_are_those_of_a_parser() -> None:
    drawn = draw_listops(60, seed=3, shortest=5, longest=80)
    for rows in (7, 4096):
        for tokens, counts in zip(drawn.x.tolist(), outermost(drawn.x, rows=rows).tolist(), strict=True):
            words = arguments(tokens)
            wanted = [words.count(word) for word in (*"0123456789", "[MIN", "[MAX", "[MED", "[SM")]
            assert counts == [tokens[0], *wanted]


@pytest.mark.parametrize(("rule", "least", "most"), [("first token", 0.2, 0.45), ("first level", 0.5, 0.95)])
def test_who_reads_more_says_more(rule: str, least: float, most: float) -> None:
    drawn = draw_listops(1500, seed=0, shortest=3, longest=30)
    train, valid, test = (drawn.take(np.arange(*part)) for part in ((0, 1000), (1000, 1250), (1250, 1500)))
    figures = rule_run(rule, train, valid, test).figures
    assert least < figures["test_accuracy"] < most
    assert least < figures["valid_accuracy"] < most
    assert figures["train_cases"] == 1000


def test_lists_of_digits_alone_are_read_whole() -> None:
    """Minimum and maximum of two arguments: all there is to know is in the first level."""
    draws = np.random.default_rng(0)
    digits = draws.integers(0, 10, (2000, 2))
    operator = draws.integers(1, 3, 2000)
    x = np.column_stack([operator, digits + VOCABULARY.index("0"), np.full(2000, VOCABULARY.index("]"))])
    y = np.where(operator == 1, digits.min(1), digits.max(1))
    lists = Tokens("flat", x, y, np.full(2000, 4), len(VOCABULARY), tuple("0123456789"))
    train, rest = lists.take(np.arange(1500)), lists.take(np.arange(1500, 2000))
    assert rule_run("first level", train, rest, rest).figures["test_accuracy"] > 0.95
    assert [*RULES] == ["first token", "first level"]
