"""A text that need not fit in memory: its vocabulary in one pass, its tokens in blocks in another."""

import lzma
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import repeat
from pathlib import Path
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from kernelhead.data.text import END, Words
from kernelhead.errors import BadInput
from kernelhead.shapes import check_size

BREAK = -1  # stands between two sentences in a block of tokens
LEFT_OUT = -2  # a word that is not in the vocabulary, until it is taken out
BLOCK = 1 << 20  # words of a block

Sentences: TypeAlias = Iterable[str | Iterable[str]]
Source: TypeAlias = Sentences | Path | Words


def read_sentences(source: Source) -> Iterator[list[str]]:
    """The sentences of a text as lists of words, one at a time.

    Args:
        source: a file with a sentence on a line, plain or .xz, read line by line; or sentences, each a
            list of words, or a string that is split at blanks; or a text in memory, whose lines are such.

    Raises:
        BadInput: the file cannot be read, or there is something else than sentences.

    Example:
        >>> [*read_sentences(["to be or", ["not", "to", "be"]])]
        [['to', 'be', 'or'], ['not', 'to', 'be']]
    """
    who = "read_sentences"
    if isinstance(source, Path):
        yield from _lines(who, source)
        return
    if isinstance(source, Words):
        names, end = np.array(source.vocabulary, dtype=object), _place_of(END, source)
        for line in np.split(source.tokens, np.flatnonzero(source.tokens == end)):
            yield names[line[line != end]].tolist()
        return
    if isinstance(source, str | bytes) or not isinstance(source, Iterable):
        raise BadInput(f"{who}: got {_kind(source)}, expected a Path of a file, or a list of sentences")
    for place, sentence in enumerate(source):
        if isinstance(sentence, str):
            yield sentence.split()
            continue
        words = [*sentence] if isinstance(sentence, Iterable) else [sentence]
        if {*map(type, words)} - {str, np.str_}:
            raise BadInput(
                f"{who}: sentence {place} is {_kind(sentence)} that holds something else than words, "
                "expected a string or a list of strings"
            )
        yield words


def count_words(source: Source) -> Counter[str]:
    """How often each word occurs; memory grows with the distinct words only.

    Raises:
        BadInput: there is no word, or as `read_sentences`.

    Example:
        >>> count_words(["to be or", "not to be"]).most_common(2)
        [('to', 2), ('be', 2)]
    """
    counts: Counter[str | None] = Counter()
    for words in _batches(source, BLOCK):
        counts.update(words)
    counts.pop(None, None)
    if not counts:
        raise BadInput("count_words: the corpus is empty, expected a word or more")
    return Counter({word: count for word, count in counts.items() if word is not None})


def choose_words(counts: Counter[str], *, least: int = 1, most: int | None = None) -> tuple[str, ...]:
    """The words that occur often enough, the most frequent first, equals by spelling.

    Args:
        counts: how often each word occurs.
        least: occurrences of a word that is kept.
        most: words to keep; all if None.

    Raises:
        BadInput: a number is out of range, no word is left, or fewer than `most`.

    Example:
        >>> choose_words(count_words(["to be or", "not to be"]), least=2)
        ('be', 'to')
    """
    who = "choose_words"
    check_size(who, "least", least)
    kept = sorted((word for word in counts if counts[word] >= least), key=lambda word: (-counts[word], word))
    if not kept:
        raise BadInput(f"{who}: none of {len(counts)} words occurs {least} times")
    if most is not None and check_size(who, "most", most) > len(kept):
        raise BadInput(
            f"{who}: a vocabulary of {most} words is larger than the corpus, in which {len(kept)} words "
            f"occur {least} times or more"
        )
    return tuple(kept[:most])


def token_blocks(
    source: Source, vocabulary: Iterable[str], *, block: int = BLOCK
) -> Iterator[NDArray[np.int32]]:
    """A text as blocks of places in a vocabulary, `BREAK` behind every sentence.

    A block goes on where the one before ended. Words that the vocabulary lacks are left out, and those
    around them move together, as word2vec and GloVe have it.

    Args:
        block: words to hold at a time.

    Raises:
        BadInput: as `read_sentences`.

    Example:
        >>> [block.tolist() for block in token_blocks(["to be or", "not to be"], ["to", "be"])]
        [[0, 1, -1, 0, 1, -1]]
    """
    places: dict[str | None, int] = {word: place for place, word in enumerate(vocabulary)}
    places[None] = BREAK
    for words in _batches(source, check_size("token_blocks", "block", block)):
        tokens = np.fromiter(map(places.get, words, repeat(LEFT_OUT)), np.int32, count=len(words))
        yield tokens[tokens != LEFT_OUT]


def broken_at(words: Words, end: str = END) -> NDArray[np.int32]:
    """The tokens of a text in memory with `BREAK` in the place of a word, such as the end of a line.

    Raises:
        BadInput: the vocabulary lacks that word.

    Example:
        >>> broken_at(Words("one", np.array([2, 0, 1]), ("<eos>", "b", "c"))).tolist()
        [2, -1, 1]
    """
    place = _place_of(end, words)
    if place == LEFT_OUT:
        raise BadInput(f"broken_at: the vocabulary of {words.name!r} has no word {end!r}")
    tokens = np.asarray(words.tokens, np.int32)
    return np.where(tokens == place, np.int32(BREAK), tokens)


def _batches(source: Source, size: int) -> Iterator[list[str | None]]:
    """Words of many sentences in one list, None behind each sentence."""
    batch: list[str | None] = []
    for sentence in read_sentences(source):
        batch.extend(sentence)
        batch.append(None)
        if len(batch) >= size:
            yield batch
            batch = []
    if batch:
        yield batch


def _lines(who: str, path: Path) -> Iterator[list[str]]:
    try:
        with (
            lzma.open(path, "rt", encoding="utf-8")
            if path.suffix == ".xz"
            else path.open(encoding="utf-8") as file
        ):
            for line in file:
                yield line.split()
    except (OSError, EOFError, lzma.LZMAError, UnicodeDecodeError) as error:
        raise BadInput(f"{who}: {path} is not a readable text: {error}") from error


def _place_of(word: str, words: Words) -> int:
    return words.vocabulary.index(word) if word in words.vocabulary else LEFT_OUT


def _kind(value: object) -> str:
    return f"a {type(value).__name__}"
