"""Text as tokens: words with their vocabulary, bytes, and labelled reviews."""

import lzma
from collections import Counter
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from kernelhead.data.sources import check_part, in_part, read_checked
from kernelhead.errors import unknown

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
WORDS = ("wikitext2",)
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
    tokens: NDArray[np.int64]
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

    ``wikitext2``: 2,088,628, 217,646 and 245,569 tokens of 33,278 words. A word that the training part
    does not have becomes `<unk>`.

    Args:
        split: train, validation or test.
        root: folder of data sets; the environment variable KERNELHEAD_DATA if left out.

    Raises:
        BadInput: a file is missing or is another one.
        UnknownName: no set has that name, or there is no such split.
    """
    who = "read_words"
    if name not in WORDS:
        raise unknown(who, "text", name, WORDS)
    check_part(who, split)
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


def make_vocabulary(words: list[str]) -> tuple[str, ...]:
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


def _split_words(text: bytes) -> list[str]:
    return text.decode().replace("\n", f" {END} ").split()


def _unpacked(who: str, place: str, root: str | Path | None) -> bytes:
    return lzma.decompress(read_checked(who, place, DIGESTS[place], root))
