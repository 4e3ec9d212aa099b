"""A text read as a stream: its sentences, its words, its blocks, and the words for what is wrong."""

import lzma
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernelhead.data import (
    BREAK,
    Words,
    broken_at,
    choose_words,
    count_words,
    read_sentences,
    token_blocks,
)
from kernelhead.errors import BadInput

TEXT = "to be or\nnot to be\n\nthat is\n"
LINES = [["to", "be", "or"], ["not", "to", "be"], [], ["that", "is"]]


def test_files_lists_strings_and_words_are_the_same_sentences(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text(TEXT, encoding="utf-8")
    with lzma.open(tmp_path / "a.txt.xz", "wt", encoding="utf-8") as file:
        file.write(TEXT)
    assert [*read_sentences(tmp_path / "a.txt")] == LINES
    assert [*read_sentences(tmp_path / "a.txt.xz")] == LINES
    assert [*read_sentences(LINES)] == [*read_sentences(TEXT.splitlines())] == LINES
    words = Words("one", np.array([0, 1, 2, 0]), ("a", "<eos>", "b"))
    assert [*read_sentences(words)] == [["a"], ["b", "a"]]
    assert [*read_sentences(Words("one", np.array([1, 0]), ("a", "b")))] == [["b", "a"]]
    assert [*read_sentences(np.array(["to be", "or"]))] == [["to", "be"], ["or"]]


@given(st.lists(st.lists(st.sampled_from("abcde"), max_size=6), min_size=1, max_size=6), st.integers(1, 9))
def test_blocks_joined_are_the_text_without_other_words(lines: list[list[str]], block: int) -> None:
    found = [*token_blocks(lines, "abc", block=block)]
    wanted = [
        each for line in lines for each in (*("abc".index(word) for word in line if word in "abc"), BREAK)
    ]
    assert np.concatenate(found).tolist() == wanted
    assert all(each.dtype == np.int32 for each in found)


def test_words_are_chosen_by_frequency_and_spelling() -> None:
    counts = count_words(LINES)
    assert counts == {"to": 2, "be": 2, "or": 1, "not": 1, "that": 1, "is": 1}
    assert choose_words(counts) == ("be", "to", "is", "not", "or", "that")
    assert choose_words(counts, most=3) == ("be", "to", "is")
    assert choose_words(counts, least=2) == ("be", "to")


def test_a_file_is_read_line_by_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.txt").write_text("a b\n" * 1000, encoding="utf-8")
    monkeypatch.setattr(Path, "read_text", None)
    monkeypatch.setattr(Path, "read_bytes", None)
    sizes = [len(block) for block in token_blocks(tmp_path / "a.txt", "ab", block=90)]
    assert max(sizes) == 90
    assert sum(sizes) == 3000


def test_ends_of_lines_become_breaks() -> None:
    words = Words("one", np.array([1, 0, 2], dtype=np.int64), ("<eos>", "a", "b"))
    assert broken_at(words).tolist() == [1, BREAK, 2]
    assert broken_at(words, "b").tolist() == [1, 0, BREAK]


def _stream() -> Iterator[object]:
    yield ["a"]
    yield 3


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: [*read_sentences("to be")], "read_sentences: got a str, expected a Path of a file"),
        (lambda: [*read_sentences(3)], "read_sentences: got a int, expected a Path"),
        (lambda: [*read_sentences(_stream())], "sentence 1 is a int that holds something else than words"),
        (lambda: [*read_sentences([b"to be"])], "sentence 0 is a bytes that holds"),
        (lambda: [*read_sentences([["a", 1]])], "sentence 0 is a list that holds"),
        (lambda: [*read_sentences(Path("nowhere.txt"))], "nowhere.txt is not a readable text"),
        (lambda: count_words([]), "count_words: the corpus is empty"),
        (lambda: count_words(["", []]), "count_words: the corpus is empty"),
        (lambda: choose_words(count_words(LINES), least=3), "none of 6 words occurs 3 times"),
        (lambda: choose_words(count_words(LINES), most=9), "a vocabulary of 9 words is larger than"),
        (lambda: choose_words(count_words(LINES), least=0), "least is 0"),
        (lambda: [*token_blocks(LINES, "a", block=0)], "token_blocks: block is 0"),
        (lambda: broken_at(Words("one", np.array([0]), ("a",))), "broken_at: the vocabulary of 'one' has no"),
    ],
)  # fmt: skip
def test_what_is_refused(call: Any, words: str) -> None:
    with pytest.raises(BadInput, match=words):
        call()


def test_a_broken_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.txt.xz").write_bytes(lzma.compress(b"to be\n" * 99)[:-20])
    with pytest.raises(BadInput, match=r"a\.txt\.xz is not a readable text"):
        count_words(tmp_path / "a.txt.xz")
    (tmp_path / "b.txt").write_bytes(b"\xff\xfe\xff")
    with pytest.raises(BadInput, match=r"b\.txt is not a readable text"):
        count_words(tmp_path / "b.txt")
