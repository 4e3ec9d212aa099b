"""Text as tokens: words with their vocabulary, bytes, and labelled reviews."""

import lzma
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from io import BytesIO
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernelhead.data.sources import check_part, in_part, made_once, read_checked, root_of, stamp
from kernelhead.errors import BadInput, unknown

UNKNOWN, END = "<unk>", "<eos>"
# First 16 hexadecimal digits of the SHA-256 of every file.
DIGESTS = {
    "wikitext2/train.txt.xz": "7f5b03a0219b81ad",
    "wikitext2/valid.txt.xz": "1322771e23310248",
    "wikitext2/test.txt.xz": "306c08b989e77ca6",
    "tinyshakespeare/input.txt.xz": "21b40ccf4999c004",
    "imdb/train.tsv.xz": "e56c792c01f9f85e",
    "imdb/test.tsv.xz": "d9e240929a302045",
}
WORDS = ("wikitext2", "wikitext103")
# How users name the files of a set that no checksum knows; the first one that is there is read.
FORMS = ("{}.txt.xz", "{}.txt", "wiki.{}.tokens")
STEMS = {"train": ("train",), "validation": ("valid", "validation"), "test": ("test",)}
BYTES = ("tinyshakespeare", "imdb")


@dataclass(frozen=True, eq=False)
class Words:
    """A text as words.

    Shapes: tokens (n,), positions in `vocabulary`.

    Args:
        name: what the set is called.
        tokens: the text, a token `<eos>` at the end of every line.
        vocabulary: every word of the training part, from the most frequent to the rarest.

    Example:
        >>> Words("two", np.array([1, 0]), ("<unk>", "<eos>")).text()
        '<eos> <unk>'
    """

    name: str
    tokens: NDArray[np.signedinteger[Any]]
    vocabulary: tuple[str, ...]

    def __len__(self) -> int:
        """How many tokens there are."""
        return len(self.tokens)

    def text(self) -> str:
        """The words again, with a blank between."""
        return " ".join(self.vocabulary[token] for token in self.tokens)


@dataclass(frozen=True, eq=False)
class Reviews:
    """Labelled texts as bytes.

    Shapes: each of cases (t,), in UTF-8; y (n,), positions in `classes`.

    Args:
        name: of the set.

    Example:
        >>> good = np.frombuffer(b"Good.", np.uint8)
        >>> Reviews("one", (good,), np.array([1]), ("negative", "positive")).longest
        5
    """

    name: str
    cases: tuple[NDArray[np.uint8], ...]
    y: NDArray[np.int64]
    classes: tuple[str, ...]

    def __len__(self) -> int:
        """How many texts there are."""
        return len(self.cases)

    @property
    def longest(self) -> int:
        """Bytes of the longest text."""
        return max(map(len, self.cases))


def read_words(name: str = "wikitext2", *, split: str = "train", root: str | Path | None = None) -> Words:
    """Read a text as words; the vocabulary is that of the training part, whatever the split.

    A word that the training part does not have becomes `<unk>`.

    - ``wikitext2``: 2,088,628, 217,646 and 245,569 tokens of 33,278 words.
    - ``wikitext103``: 103 million tokens of 267,735 words, and the other parts of WikiText-2. The folder
      wikitext103 has each part as train.txt.xz, train.txt or wiki.train.tokens, valid and test
      likewise. Texts are read line by line, once: tokens in int32 and the vocabulary are kept in a file
      (see `made_once`) until the text changes, and tokens are a map of that file.

    Args:
        split: train, validation or test.
        root: folder of data sets; the environment variable KERNELHEAD_DATA if left out.

    Raises:
        BadInput: a file is missing, is another one, or cannot be read as text.
        UnknownName: no set has that name, or there is no such split.
        CheckpointError: there is no place for the files that are made once.
    """
    who = "read_words"
    if name not in WORDS:
        raise unknown(who, "text", name, WORDS)
    check_part(who, split)
    if name == "wikitext103":
        return _read_large(who, name, split, root)
    training = _split_words(_unpacked(who, f"{name}/train.txt.xz", root))
    vocabulary = make_vocabulary(training)
    file = "valid" if split == "validation" else split
    words = training if split == "train" else _split_words(_unpacked(who, f"{name}/{file}.txt.xz", root))
    return Words(name, encode_words(words, vocabulary), vocabulary)


def read_bytes(
    name: str = "tinyshakespeare", *, split: str = "train", root: str | Path | None = None
) -> NDArray[np.uint8]:
    """Read a text as bytes.

    - ``tinyshakespeare``: 1,115,394 bytes; the first nine tenths train, the next twentieth validates, the
      last one tests.
    - ``imdb``: the reviews of `read_reviews`, each but the last ended by a new line.

    Shapes: returns (n,).

    Args:
        split: train, validation or test.
        root: folder of data sets; the environment variable KERNELHEAD_DATA if left out.

    Raises:
        BadInput: a file is missing or is another one.
        UnknownName: no set has that name, or there is no such split.
    """
    who = "read_bytes"
    if name not in BYTES:
        raise unknown(who, "text", name, BYTES)
    check_part(who, split)
    if name == "imdb":
        cases = read_reviews(split, root=root).cases
        return np.frombuffer(b"\n".join(case.tobytes() for case in cases), np.uint8)
    whole = np.frombuffer(_unpacked(who, "tinyshakespeare/input.txt.xz", root), np.uint8)
    cuts = {"train": (0, 18), "validation": (18, 19), "test": (19, 20)}[split]
    first, last = (len(whole) * cut // 20 for cut in cuts)
    return whole[first:last]


def read_reviews(
    split: str = "train", *, root: str | Path | None = None, validation: float = 0.1, seed: int = 0
) -> Reviews:
    """Read the IMDB reviews, 25,000 for training and 25,000 for testing, half of each positive.

    They stand in the order of the file, negative ones first. The validation part is cut from the
    training part.

    Args:
        split: train, validation or test.
        root: folder of data sets; the environment variable KERNELHEAD_DATA if left out.
        validation: share of every class that is held out; 0 keeps all for training.
        seed: names the draw of the validation part.

    Raises:
        BadInput: a file is missing or is another one, or a number is out of range.
        UnknownName: there is no such split.
    """
    who = "read_reviews"
    source = check_part(who, split)
    place = f"imdb/{source}.tsv.xz"
    labels, texts = [], []
    # Line by line: the file is never unpacked as a whole.
    with lzma.open(BytesIO(read_checked(who, place, DIGESTS[place], root))) as file:
        for line in file:
            label, _stars, _film, text = line.removesuffix(b"\n").split(b"\t", 3)
            labels.append(int(label))
            texts.append(np.frombuffer(text, np.uint8))
    y = np.array(labels)
    chosen = np.flatnonzero(in_part(who, y, split, validation=validation, seed=seed))
    return Reviews("imdb", tuple(texts[i] for i in chosen), y[chosen], ("negative", "positive"))


def make_vocabulary(words: Iterable[str]) -> tuple[str, ...]:
    """The distinct words, from the most frequent to the rarest, equals by spelling; `<unk>` among them.

    Example:
        >>> make_vocabulary("to be or not to be <eos>".split())
        ('be', 'to', '<eos>', 'not', 'or', '<unk>')
    """
    counts = Counter(words)
    counts.setdefault(UNKNOWN, 0)
    counts.setdefault(END, 0)
    return tuple(sorted(counts, key=lambda word: (-counts[word], word)))


def encode_words(words: list[str], vocabulary: tuple[str, ...]) -> NDArray[np.int64]:
    """The position of every word in a vocabulary that has `<unk>`, which stands for those it lacks.

    Example:
        >>> encode_words(["be", "quiet"], ("be", "<unk>")).tolist()
        [0, 1]
    """
    places = {word: place for place, word in enumerate(vocabulary)}
    other = places[UNKNOWN]
    return np.array([places.get(word, other) for word in words], dtype=np.int64)


def _read_large(who: str, name: str, split: str, root: str | Path | None) -> Words:
    folder = root_of(who, name, root) / name
    training, source = (_text_file(who, folder, part) for part in ("train", split))

    def write_vocabulary(path: Path) -> None:
        words = chain.from_iterable(_lines(who, training))
        path.write_text("\n".join(make_vocabulary(words)), encoding="utf-8")

    listed = made_once(folder, f"vocabulary-{stamp(training)}.txt", write_vocabulary)
    vocabulary = tuple(listed.read_text(encoding="utf-8").split("\n"))

    def write_tokens(path: Path) -> None:
        places = {word: place for place, word in enumerate(vocabulary)}
        other = places[UNKNOWN]
        with path.open("wb") as file:
            for line in _lines(who, source):
                file.write(array("i", [places.get(word, other) for word in line]))

    coded = made_once(folder, f"{split}-{stamp(training, source)}.int32", write_tokens)
    # Pages are copied when they are written to, so that the file stays as it is.
    return Words(name, np.memmap(coded, np.int32, mode="c"), vocabulary)


def _text_file(who: str, folder: Path, part: str) -> Path:
    names = [form.format(stem) for form in FORMS for stem in STEMS[part]]
    for name in names:
        if (folder / name).is_file():
            return folder / name
    raise BadInput(
        f"{who}: {folder} has none of {', '.join(names)}; put one there, such as {names[-len(STEMS[part])]} "
        "of the archive wikitext-103-v1.zip"
    )


def _lines(who: str, path: Path) -> Iterator[list[str]]:
    """The words of a text, a line at a time."""
    empty = True
    try:
        with lzma.open(path) if path.suffix == ".xz" else path.open("rb") as file:
            for line in file:
                words = _split_words(line)
                empty = empty and not words
                yield words
    except (OSError, EOFError, lzma.LZMAError, UnicodeDecodeError) as error:
        raise BadInput(f"{who}: {path} is not a readable text: {error}") from error
    if empty:
        raise BadInput(f"{who}: {path} has no words")


def _split_words(text: bytes) -> list[str]:
    return text.decode().replace("\n", f" {END} ").split()


def _unpacked(who: str, place: str, root: str | Path | None) -> bytes:
    return lzma.decompress(read_checked(who, place, DIGESTS[place], root))
