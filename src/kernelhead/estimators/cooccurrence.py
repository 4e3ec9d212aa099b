"""Vectors of words from co-occurrence, with scikit-learn's interface and gensim's way to look them up."""

from collections.abc import Iterable, Sequence
from math import isfinite
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils import Tags
from sklearn.utils.validation import check_is_fitted

from kernelhead.data import choose_words, count_words, read_sentences, token_blocks
from kernelhead.decomposition import factor_pairs
from kernelhead.errors import BadInput, CheckpointError
from kernelhead.estimators.seeds import as_seed
from kernelhead.kernels import CooccurrenceKernel, unit_rows
from kernelhead.models import first_round
from kernelhead.records import write_atomically
from kernelhead.shapes import check_size


class CooccurrenceEmbedding(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """Word vectors without training: the kernel SVD of co-occurrence in a text that need not fit in memory.

    The text is read twice, for its words and for its pairs. Words that share their contexts get near vectors.
    All is computed, so that the same text gives the same vectors.

    Args:
        width: of a vector; even where `directed`.
        window: largest distance of a pair.
        weighting: of a pair at distance d, "harmonic" 1/d or "flat" 1.
        directed: whether the order of a pair counts; a vector then has a half for each direction.
        association: of counts: "ppmi", "pmi", "log" or "count".
        shift: taken from pmi.
        smoothing: power of the contexts' counts.
        power: of the singular values in a vector.
        least: occurrences of a word that gets a vector.
        most: words that get one, the most frequent; all if None.
        random_state: seed of the first vector of the Lanczos steps; None stands for 0.

    Attributes:
        words_: that have a vector, the most frequent first.
        vectors_: (words, width), float32.
        kernel_: the `CooccurrenceKernel`; not after `load`.

    Example:
        >>> text = ["the cat sat on the mat", "the dog sat on the mat", "rain fell on the roof"] * 5
        >>> model = CooccurrenceEmbedding(width=4, window=2).fit(text)
        >>> model["cat"].shape, model.most_similar("cat", topn=1)[0][0], "mouse" in model
        ((4,), 'dog', False)
    """

    def __init__(
        self,
        width: int = 100,
        *,
        window: int = 5,
        weighting: str = "harmonic",
        directed: bool = False,
        association: str = "ppmi",
        shift: float = 0.0,
        smoothing: float = 0.75,
        power: float = 0.5,
        least: int = 5,
        most: int | None = None,
        random_state: int | np.random.RandomState | None = None,
    ) -> None:
        self.width = width
        self.window = window
        self.weighting = weighting
        self.directed = directed
        self.association = association
        self.shift = shift
        self.smoothing = smoothing
        self.power = power
        self.least = least
        self.most = most
        self.random_state = random_state

    def __sklearn_tags__(self) -> Tags:
        """It takes texts."""
        tags = super().__sklearn_tags__()
        tags.input_tags.two_d_array = False
        tags.input_tags.string = True
        return tags

    def fit(self, X: Any, y: object = None) -> "CooccurrenceEmbedding":  # noqa: N803  scikit-learn's names
        """Count, associate, factor.

        Args:
            X: a Path of a file with a sentence on a line, plain or .xz; sentences that can be read twice,
                each a list of words or a string that is split at blanks; or `Words`, whose lines are such.
            y: not used.

        Raises:
            BadInput: the corpus is empty, has fewer words than asked for or than `width`, can be read once
                only, or an option is out of range.
            UnknownName: no such weighting or association.
        """
        check_size(type(self).__name__, "width", self.width, least=1 + self.directed)
        if self.directed and self.width % 2:
            raise BadInput(
                f"CooccurrenceEmbedding: width is {self.width}, expected an even one for two directions"
            )
        if not isfinite(self.power):
            raise BadInput(f"CooccurrenceEmbedding: power is {self.power!r}, expected a finite number")
        if isinstance(X, Iterable) and iter(X) is X:
            raise BadInput(
                f"CooccurrenceEmbedding: got a {type(X).__name__}, which can be read once only; expected "
                "such as a list"
            )
        self.words_ = choose_words(count_words(X), least=self.least, most=self.most)
        if self.width > len(self.words_):
            raise BadInput(
                f"CooccurrenceEmbedding: width is {self.width}, but {len(self.words_)} words occur "
                f"{self.least} times or more"
            )
        self.kernel_ = CooccurrenceKernel.count(
            token_blocks(X, self.words_),
            len(self.words_),
            window=self.window,
            weighting=self.weighting,
            directed=self.directed,
            transform=self.association,
            shift=self.shift,
            smoothing=self.smoothing,
        )
        rank = self.width // 2 if self.directed else self.width
        factors = factor_pairs(self.kernel_, rank=rank, seed=as_seed(self.random_state))
        self._keep(self.words_, factors.vectors(power=self.power, both=self.directed).float().numpy())
        return self

    def transform(self, X: Any) -> NDArray[np.float32]:  # noqa: N803
        """The mean vector of each sentence, (sentences, width); zero where no word has a vector."""
        check_is_fitted(self)
        width = self.vectors_.shape[1]
        places = [[self._places[word] for word in sentence if word in self] for sentence in read_sentences(X)]
        means = [self.vectors_[each].mean(0) if each else np.zeros(width, np.float32) for each in places]
        return np.stack(means) if means else np.zeros((0, width), np.float32)

    def __contains__(self, word: object) -> bool:
        """Whether a word has a vector."""
        check_is_fitted(self)
        return word in self._places

    def __getitem__(self, words: str | Sequence[str]) -> NDArray[np.float32]:
        """The vector of a word, (width,), or those of several, (words, width).

        Raises:
            BadInput: a word has none.
        """
        check_is_fitted(self)
        if isinstance(words, str):
            return np.asarray(self.vectors_[self._place(words)])
        return np.asarray(self.vectors_[[self._place(word) for word in words]])

    def most_similar(
        self, positive: str | Sequence[str] = (), negative: str | Sequence[str] = (), *, topn: int = 10
    ) -> list[tuple[str, float]]:
        """The words nearest to a sum of words by the cosine, best first, the given ones left out.

        Args:
            positive: a word or several, each of length one in the sum.
            negative: words that are taken away; king and woman less man is the well-known question.
            topn: how many words.

        Raises:
            BadInput: no word is given, a word has no vector, or `topn` is below one.
        """
        check_is_fitted(self)
        check_size("most_similar", "topn", topn)
        added, taken = ([each] if isinstance(each, str) else [*each] for each in (positive, negative))
        if not added and not taken:
            raise BadInput("most_similar: neither a positive nor a negative word is given")
        given = [self._place(word) for word in (*added, *taken)]
        signs = torch.tensor([1.0] * len(added) + [-1.0] * len(taken))
        points = torch.from_numpy(self.vectors_)
        query = (signs[:, None] * unit_rows(points[given])).mean(0, keepdim=True)
        found = first_round(query, points, topn + len(given))
        pairs = zip(found.order[0].tolist(), found.scores[0].tolist(), strict=True)
        return [(self.words_[place], score) for place, score in pairs if place not in given][:topn]

    def similarity(self, one: str, other: str) -> float:
        """The cosine of two words.

        Raises:
            BadInput: a word has no vector.
        """
        pair = unit_rows(torch.from_numpy(self[[one, other]]).double())
        return float(pair[0] @ pair[1])

    def save(self, path: Path) -> None:
        """Write the vectors in the text format of word2vec, which gensim reads; whole or not at all.

        Raises:
            BadInput: a word has a blank in it, which the format cannot hold.
            CheckpointError: the file cannot be written.
        """
        check_is_fitted(self)
        for word in self.words_:
            if word.split() != [word]:
                raise BadInput(
                    f"CooccurrenceEmbedding: the word {word!r} has a blank, which the format cannot hold"
                )

        def write(temporary: Path) -> None:
            with temporary.open("w", encoding="utf-8", newline="\n") as file:
                file.write(f"{len(self.words_)} {self.vectors_.shape[1]}\n")
                # numpy writes the shortest digits that give the same float32 again.
                for word, row in zip(self.words_, self.vectors_.astype(str), strict=True):
                    file.write(f"{word} {' '.join(row)}\n")

        write_atomically(Path(path), write)

    @classmethod
    def load(cls, path: Path) -> "CooccurrenceEmbedding":
        """Read vectors in the text format of word2vec, those of `save` or of another program.

        Raises:
            CheckpointError: the file is missing, cut short, or no such file.
        """
        try:
            with Path(path).open(encoding="utf-8") as file:
                count, width = map(int, file.readline().split())
                rows = [line.rstrip().split(" ") for line in file]
            vectors = np.array([row[1:] for row in rows], dtype=np.float32)
            if vectors.shape != (count, width) or not count or not np.isfinite(vectors).all():
                raise ValueError(
                    f"its first line says {count} words of {width} numbers, found {vectors.shape}"
                )
        except (OSError, ValueError) as error:
            raise CheckpointError(
                f"{path} holds no vectors in the text format of word2vec: {error}"
            ) from error
        made = cls(width=width)
        made._keep(tuple(row[0] for row in rows), vectors)
        return made

    def _keep(self, words: tuple[str, ...], vectors: NDArray[np.float32]) -> None:
        self.words_, self.vectors_ = words, vectors
        self._places = {word: place for place, word in enumerate(words)}
        self._n_features_out = vectors.shape[1]

    def _place(self, word: str) -> int:
        if word not in self._places:
            raise BadInput(
                f"CooccurrenceEmbedding: the word {word!r} is not among the {len(self.words_)} with a vector"
            )
        return self._places[word]
