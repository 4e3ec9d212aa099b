"""Words, bytes and reviews: their parts, vocabulary and checksums, and the words for what is wrong."""

import lzma
import os
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernelhead.data.text import (
    DIGESTS,
    FORMS,
    encode_words,
    make_vocabulary,
    read_bytes,
    read_reviews,
    read_words,
)
from kernelhead.errors import BadInput, UnknownName

SHARED = os.environ.get("KERNELHEAD_DATA")
needs_shared = pytest.mark.skipif(not SHARED, reason="KERNELHEAD_DATA does not name the folder of data sets")
REVIEWS = [("0", "Bad.\tVery bad."), ("0", "Weak"), ("0", "No\x85no"), ("1", "Très bien"), ("1", "Good")]
Put = Callable[[str, str], None]


@pytest.fixture(autouse=True)
def _no_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KERNELHEAD_DATA", raising=False)


@pytest.fixture
def put(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Put:
    """Put a text in a folder of data sets; its checksum is then the expected one."""

    def inside(place: str, text: str) -> None:
        packed = lzma.compress(text.encode())
        (tmp_path / place).parent.mkdir(exist_ok=True)
        (tmp_path / place).write_bytes(packed)
        monkeypatch.setitem(DIGESTS, place, sha256(packed).hexdigest()[:16])

    return inside


def test_words_have_the_vocabulary_of_the_training_part(tmp_path: Path, put: Put) -> None:
    put("wikitext2/train.txt.xz", " \n to be or not to <unk> \n")
    put("wikitext2/valid.txt.xz", " be quiet \n")
    put("wikitext2/test.txt.xz", " to \n")
    train, validation, test = (
        read_words(split=split, root=tmp_path) for split in ("train", "validation", "test")
    )
    assert train.vocabulary == validation.vocabulary == test.vocabulary
    assert train.vocabulary == ("<eos>", "to", "<unk>", "be", "not", "or")
    assert train.text() == "<eos> to be or not to <unk> <eos>"
    assert validation.text() == "be <unk> <eos>"
    assert (test.tokens.tolist(), test.tokens.dtype, len(test), test.name) == (
        [1, 0],
        np.int64,
        2,
        "wikitext2",
    )


PARTS = {
    "train": " \n to be or\xa0not to <unk> \n \n",
    "valid": " be quiet \n",
    "test": " to \n or",  # the last line has no end
}


def large(root: Path, form: str, stems: dict[str, str] | None = None) -> Path:
    """A small text in the folder of the large one."""
    folder = root / "wikitext103"
    folder.mkdir(exist_ok=True)
    for part, text in PARTS.items():
        content = text.encode()
        path = folder / form.format((stems or {}).get(part, part))
        path.write_bytes(lzma.compress(content) if form.endswith("xz") else content)
    return folder


@pytest.mark.parametrize("form", FORMS)
def test_a_large_text_is_read_like_a_small_one(tmp_path: Path, put: Put, form: str) -> None:
    for part, text in PARTS.items():
        put(f"wikitext2/{part}.txt.xz", text)
    large(tmp_path, form, {"valid": "validation"} if form == "{}.txt" else None)
    for split in ("train", "validation", "test"):
        made, wanted = (read_words(name, split=split, root=tmp_path) for name in ("wikitext103", "wikitext2"))
        assert (made.name, made.vocabulary, made.text()) == ("wikitext103", wanted.vocabulary, wanted.text())
        assert isinstance(made.tokens, np.memmap)
        assert made.tokens.dtype == np.int32


def test_a_large_text_is_read_once_until_it_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = large(tmp_path, "{}.txt")
    first = read_words("wikitext103", split="test", root=tmp_path)
    kept = {path.name: path.stat().st_mtime_ns for path in (folder / "cache").iterdir()}
    assert sorted(name.split("-")[0] for name in kept) == ["test", "vocabulary"]
    first.tokens[:] = 0  # what is written to a map stays in memory
    monkeypatch.setenv("KERNELHEAD_DATA", str(tmp_path))
    assert read_words("wikitext103", split="test").text() == "to <eos> or"
    assert {path.name: path.stat().st_mtime_ns for path in (folder / "cache").iterdir()} == kept
    (folder / "train.txt").write_text(" or \n")
    assert read_words("wikitext103", split="test").text() == "<unk> <eos> or"


def test_large_texts_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    words = (
        r"wikitext103 has none of train.txt.xz, train.txt, wiki.train.tokens; put one there, such as "
        r"wiki.train.tokens of the archive wikitext-103-v1.zip"
    )
    with pytest.raises(BadInput, match=f"read_words: .*{words}"):
        read_words("wikitext103", root=tmp_path)
    with pytest.raises(BadInput, match=r"read_words: wikitext103 is in no known folder; give `root` or set"):
        read_words("wikitext103")
    folder = large(tmp_path, "{}.txt")
    (folder / "valid.txt").unlink()
    words = r"none of valid.txt.xz, validation.txt.xz, .*put one there, such as wiki.valid.tokens of"
    with pytest.raises(BadInput, match=words):
        read_words("wikitext103", split="validation", root=tmp_path)
    for content in (b"no xz", lzma.compress(b"to be")[:-4], lzma.compress(b"\xff")):
        (folder / "train.txt.xz").write_bytes(content)
        with pytest.raises(BadInput, match=r"read_words: .*train.txt.xz is not a readable text: "):
            read_words("wikitext103", root=tmp_path)
    (folder / "train.txt.xz").write_bytes(lzma.compress(b" "))
    with pytest.raises(BadInput, match=r"read_words: .*train.txt.xz has no words"):
        read_words("wikitext103", root=tmp_path)
    assert [*(folder / "cache").iterdir()] == []


@given(st.lists(st.text("abc", min_size=1, max_size=3), max_size=30))
def test_a_vocabulary_falls_in_frequency_and_gives_the_words_back(words: list[str]) -> None:
    vocabulary = make_vocabulary(words)
    assert set(vocabulary) == {*words, "<unk>", "<eos>"}
    counts = [words.count(word) for word in vocabulary]
    assert counts == sorted(counts, reverse=True)
    assert make_vocabulary(words[::-1]) == vocabulary
    assert [vocabulary[token] for token in encode_words(words, vocabulary)] == words


def test_bytes_are_cut_in_order(tmp_path: Path, put: Put, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "".join(chr(33 + place) for place in range(47))
    put("tinyshakespeare/input.txt.xz", text)
    monkeypatch.setenv("KERNELHEAD_DATA", str(tmp_path))
    parts = [read_bytes(split=split) for split in ("train", "validation", "test")]
    assert b"".join(part.tobytes() for part in parts) == text.encode()
    assert [len(part) for part in parts] == [42, 2, 3]
    assert {part.dtype for part in parts} == {np.dtype(np.uint8)}


def test_reviews_are_bytes_with_labels(tmp_path: Path, put: Put) -> None:
    put("imdb/train.tsv.xz", "".join(f"{label}\t7\t12\t{text}\n" for label, text in REVIEWS))
    put("imdb/test.tsv.xz", "1\t9\t3\tFine\n")
    whole = read_reviews(root=tmp_path, validation=0)
    assert [case.tobytes().decode() for case in whole.cases] == [text for _, text in REVIEWS]
    assert (whole.y.tolist(), whole.classes) == ([0, 0, 0, 1, 1], ("negative", "positive"))
    assert (len(whole), whole.longest, whole.name) == (5, 14, "imdb")
    parts = [read_reviews(split, root=tmp_path, validation=0.5, seed=1) for split in ("train", "validation")]
    assert [sorted(part.y.tolist()) for part in parts] == [[0, 1], [0, 0, 1]]
    together = sorted(case.tobytes() for part in parts for case in part.cases)
    assert together == sorted(text.encode() for _, text in REVIEWS)
    assert [case.tobytes() for case in read_reviews("test", root=tmp_path).cases] == [b"Fine"]
    assert read_bytes("imdb", split="test", root=tmp_path).tobytes() == b"Fine"
    assert read_bytes("imdb", root=tmp_path).tobytes().count(b"\n") == 2


@needs_shared
@pytest.mark.slow
def test_wikitext_has_its_published_counts() -> None:
    counts = {"train": 2_088_628, "validation": 217_646, "test": 245_569}
    for split, count in counts.items():
        words = read_words(split=split, root=SHARED)
        assert (len(words), len(words.vocabulary)) == (count, 33_278)
        assert words.vocabulary[words.tokens[0]] == "<eos>"


@needs_shared
def test_shakespeare_is_whole() -> None:
    parts = [read_bytes(split=split, root=SHARED) for split in ("train", "validation", "test")]
    assert sum(map(len, parts)) == 1_115_394
    assert parts[0][:14].tobytes() == b"First Citizen:"


@needs_shared
@pytest.mark.slow
def test_reviews_are_balanced() -> None:
    for split, count in {"train": 22_500, "validation": 2_500, "test": 25_000}.items():
        reviews = read_reviews(split, root=SHARED)
        assert (len(reviews), reviews.y.mean()) == (count, 0.5)
        lengths = np.array([len(case) for case in reviews.cases])
        assert 1_280 < lengths.mean() < 1_370
        assert lengths.min() > 0


@pytest.mark.parametrize(
    ("read", "given", "sentence"),
    [
        (read_words, {"name": "wikitext"}, "read_words: unknown text 'wikitext', did you mean 'wikitext2'"),
        (read_words, {"split": "valid"}, "read_words: unknown split 'valid', did you mean 'validation'"),
        (read_bytes, {"name": "imbd"}, "read_bytes: unknown text 'imbd', did you mean 'imdb'"),
        (read_bytes, {"split": "tests"}, "read_bytes: unknown split 'tests', did you mean 'test'"),
        (read_reviews, {"split": "tests"}, "read_reviews: unknown split 'tests', did you mean 'test'"),
    ],
)
def test_unknown_names_suggest_the_nearest(read: Any, given: dict[str, str], sentence: str) -> None:
    with pytest.raises(UnknownName, match=sentence):
        read(**given)


@pytest.mark.parametrize("read", [read_words, read_bytes, read_reviews])
def test_files_that_are_not_there_or_others_are_named(read: Any, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=rf"{read.__name__}: .*xz is in no known folder; give `root` or set"):
        read()
    with pytest.raises(BadInput, match=rf"{read.__name__}: .*xz cannot be read: No such file"):
        read(root=tmp_path)
    for place in DIGESTS:
        (tmp_path / place).parent.mkdir(exist_ok=True)
        (tmp_path / place).write_bytes(b"abc")
    with pytest.raises(BadInput, match=rf"{read.__name__}: .*xz has the SHA-256 ba7816bf8f01cfea, expected "):
        read(root=tmp_path)


def test_shares_that_do_not_fit_are_named(tmp_path: Path, put: Put) -> None:
    put("imdb/train.tsv.xz", "0\t1\t1\ta\n0\t1\t1\tb\n1\t9\t1\tc\n")
    with pytest.raises(BadInput, match=r"read_reviews: validation is 1, expected a number in \[0, 1\)"):
        read_reviews(root=tmp_path, validation=1)
    with pytest.raises(BadInput, match="read_reviews: a validation share of 0 holds out none of 3 cases"):
        read_reviews("validation", root=tmp_path, validation=0)
    with pytest.raises(BadInput, match="read_reviews: seed is -1, expected a whole number of at least 0"):
        read_reviews(root=tmp_path, seed=-1)
