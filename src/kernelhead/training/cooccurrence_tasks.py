"""What co-occurrence knows: the order of words, a word that is hidden, and the start of a network."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from kernelhead.data import BREAK
from kernelhead.decomposition import factor_pairs
from kernelhead.errors import BadInput, unknown
from kernelhead.inspection import (
    PositionalTerms,
    asymmetry_index,
    compare_kernels,
    positional_terms,
    read_circuits,
    unembedding,
)
from kernelhead.kernels import CooccurrenceKernel
from kernelhead.models import LanguageModel
from kernelhead.nn import DistributionalAttention, start_from_kernel
from kernelhead.rng import generator
from kernelhead.shapes import check_size

ORDERS = ("causal", "previous", "all")
PART = 64  # hidden words that are scored at a time
SPREAD = 0.02  # of embeddings where a network starts

Tokens = NDArray[np.integer[Any]]


@dataclass(frozen=True)
class OrderFigures:
    """How often a text scores above its words in another order, and how often it ties, as shares."""

    right: float
    ties: float

    @property
    def score(self) -> float:
        """The share of right answers, ties counted half: chance is one half."""
        return self.right + self.ties / 2


@dataclass(frozen=True, eq=False)
class Hidden:
    """Words of a text with their neighbours.

    Shapes: words (c,), the hidden ones; before and after (c, w), their neighbours, nearest first and -1 where
    the sentence has none.
    """

    words: Tensor
    before: Tensor
    after: Tensor


def stretches(tokens: Tokens, *, length: int, count: int, seed: int) -> Tensor:
    """Stretches of a text that lie within a sentence, drawn without overlap, (count, length).

    Raises:
        BadInput: there are fewer than `count`.

    Example:
        >>> stretches(np.array([1, 2, 3, BREAK, 4, 5, 6, 7]), length=2, count=3, seed=0).shape
        torch.Size([3, 2])
    """
    who = "stretches"
    check_size(who, "length", length)
    sentences = np.split(tokens, np.flatnonzero(tokens == BREAK))
    cut = [part[part != BREAK] for part in sentences]
    found = [part[: len(part) // length * length].reshape(-1, length) for part in cut]
    rows = np.concatenate(found)
    if len(rows) < check_size(who, "count", count):
        raise BadInput(f"{who}: the text has {len(rows)} stretches of {length} words, expected {count}")
    chosen = torch.randperm(len(rows), generator=generator(seed))[:count]
    return torch.from_numpy(rows.astype(np.int64))[chosen]


def order_figures(
    kernel: CooccurrenceKernel, texts: Tensor, *, pairs: str = "causal", seed: int = 0
) -> OrderFigures:
    r"""Whether $\sum_{s < r} S_{w_r w_s}$ of a text is above that of its words in a random order.

    Shapes: texts (c, n).

    Args:
        kernel: between words; directed, row the later one.
        texts: stretches of words; one whose words are all the same ties.
        pairs: "causal" all earlier words, "previous" the one before, or "all" both directions, whose sum no
            order can change.
        seed: of the other order.

    Raises:
        UnknownName: no such pairs.

    Example:
        >>> kernel = CooccurrenceKernel(np.array([[0.0, 0.0], [3.0, 0.0]]))  # word 1 behind word 0
        >>> order_figures(kernel, torch.tensor([[0, 1], [0, 0]])).ties
        0.5
    """
    if pairs not in ORDERS:
        raise unknown("order_figures", "pairs", pairs, ORDERS)
    draws, other = generator(seed), texts.clone()
    for row in other:
        # Drawn until the order is another one, where there is another one.
        while bool((row != row[0]).any()):
            mixed = row[torch.randperm(len(row), generator=draws)]
            if not torch.equal(mixed, row):
                row.copy_(mixed)
                break
    first, second = (_order_scores(kernel, each, pairs) for each in (texts, other))
    return OrderFigures(float((first > second).double().mean()), float((first == second).double().mean()))


def hidden_words(tokens: Tokens, *, window: int, count: int, least: int, seed: int) -> Hidden:
    """Words of a text to be found again from their neighbours, drawn among those from place `least` on.

    Args:
        tokens: places in a vocabulary that is sorted by frequency, `BREAK` between sentences.
        window: neighbours on each side.
        count: how many words to hide.
        least: the most frequent words are not asked for.
        seed: of the draw.

    Raises:
        BadInput: there are fewer such words.

    Example:
        >>> hidden_words(np.array([3, 4, 5, BREAK, 6]), window=1, count=4, least=3, seed=0).words.shape
        torch.Size([4])
    """
    places = np.flatnonzero(tokens >= least)
    if len(places) < count:
        raise BadInput(f"hidden_words: {len(places)} words from place {least} on, expected {count}")
    places = places[torch.randperm(len(places), generator=generator(seed))[:count].numpy()]
    sentence = np.cumsum(tokens == BREAK)

    def side(step: int) -> Tensor:
        columns = []
        for distance in range(1, window + 1):
            at = places + step * distance
            inside = (at >= 0) & (at < len(tokens))
            held = np.clip(at, 0, len(tokens) - 1)
            real = inside & (sentence[held] == sentence[places]) & (tokens[held] != BREAK)
            columns.append(np.where(real, tokens[held], -1))
        return torch.from_numpy(np.stack(columns, axis=1).astype(np.int64))

    return Hidden(torch.from_numpy(tokens[places].astype(np.int64)), side(-1), side(1))


def retrieval_figures(scores: Callable[[Hidden], Tensor], hidden: Hidden) -> dict[str, float]:
    """Mean reciprocal rank and the share of hidden words among the ten best; ties count as half ahead.

    Args:
        scores: from some hidden words to scores of the vocabulary, (c, v).
        hidden: all of them.

    Example:
        >>> hidden = Hidden(torch.tensor([1]), torch.tensor([[0]]), torch.tensor([[0]]))
        >>> retrieval_figures(lambda part: torch.tensor([[0.3, 0.2, 0.1]]), hidden)
        {'reciprocal_rank': 0.5, 'hit_10': 1.0}
    """
    ranks = []
    for first in range(0, len(hidden.words), PART):
        part = Hidden(*(each[first : first + PART] for each in vars(hidden).values()))
        found = scores(part).double()
        own = found.gather(1, part.words[:, None])
        ranks.append(1 + (found > own).sum(1) + ((found == own).sum(1) - 1) / 2)
    rank = torch.cat(ranks)
    return {
        "reciprocal_rank": float((1 / rank).mean()),
        "hit_10": float((rank <= 10).double().mean()),
    }


def neighbour_scores(method: str, kernel: CooccurrenceKernel, counts: Tensor) -> Callable[[Hidden], Tensor]:
    """Scores of the vocabulary for a hidden word from its neighbours, by name.

    - "unigram": how frequent a word is, whatever the neighbours.
    - "directed": rows of what stands behind and columns of what stands before, summed; for a directed kernel.
    - "profiles": rows of all neighbours, summed: Q S.
    - "row", "softmax", "none": the pattern of the neighbours, so normalised, times their rows; "none" is the
      published prediction M (Q S).

    Args:
        kernel: between words.
        counts: how frequent words are, (v,).

    Raises:
        UnknownName: no such method.

    Example:
        >>> kernel = CooccurrenceKernel(np.array([[0.0, 0.0], [3.0, 0.0]]))
        >>> hidden = Hidden(torch.tensor([1]), torch.tensor([[0]]), torch.tensor([[-1]]))
        >>> neighbour_scores("directed", kernel, torch.ones(2))(hidden)
        tensor([[0., 3.]])
    """
    if method not in METHODS:
        raise unknown("neighbour_scores", "method", method, METHODS)
    if method == "unigram":
        return lambda hidden: counts.expand(len(hidden.words), -1)
    dense = kernel.pattern()

    def summed(entries: Tensor, words: Tensor) -> Tensor:
        return (entries[words.clamp_min(0)] * (words >= 0)[..., None]).sum(1)

    if method == "directed":
        columns = dense.entries.mT.contiguous()
        return lambda hidden: summed(columns, hidden.before) + summed(dense.entries, hidden.after)
    if method == "profiles":
        return lambda hidden: summed(dense.entries, torch.cat([hidden.before, hidden.after], dim=1))
    attention = DistributionalAttention(dense, normalise=method)

    def attended(hidden: Hidden) -> Tensor:
        words = torch.cat([hidden.before.flip(1), hidden.after], dim=1)
        return attention.predict(words.clamp_min(0), mask=words >= 0)

    return attended


METHODS = ("unigram", "profiles", "directed", "row", "softmax", "none")


def shuffled_kernel(kernel: CooccurrenceKernel, *, seed: int) -> CooccurrenceKernel:
    """The same kernel with its rows and its columns at random places: the same spectrum, no meaning.

    Example:
        >>> kernel = CooccurrenceKernel(np.diag([1.0, 2.0]))
        >>> float(shuffled_kernel(kernel, seed=0).matrix.sum())
        3.0
    """
    rows, columns = (
        torch.randperm(kernel.vocabulary, generator=generator(seed, side)).numpy() for side in (0, 1)
    )
    return CooccurrenceKernel(kernel.matrix[rows][:, columns])


@torch.no_grad()
def start_language_model(
    model: LanguageModel, kernel: CooccurrenceKernel, *, temperature: float = 1.0
) -> None:
    """Set the embeddings of a language model and the queries and keys of its first layer from a kernel.

    Embeddings are the left and right factors side by side, as large as a random start has them.

    Raises:
        BadInput: the first layer is no softmax attention, the width is odd, or the kernel has fewer words.

    Example:
        >>> model = LanguageModel(6, width=4, depth=1, heads=1)
        >>> start_language_model(model, CooccurrenceKernel(np.eye(6)))
        >>> round(float(model.embedding.weight.detach().std(correction=0)), 4)
        0.02
    """
    block: Any = model.blocks[0]
    width = model.embedding.embedding_dim
    if (
        not hasattr(block.attention, "query")
        or width % 2
        or kernel.vocabulary != model.embedding.num_embeddings
    ):
        raise BadInput(
            f"start_language_model: {type(block.attention).__name__} of width {width} and "
            f"{model.embedding.num_embeddings} words, kernel of {kernel.vocabulary}; expected softmax "
            "attention of even width and the same words"
        )
    vectors = factor_pairs(kernel, rank=width // 2).vectors(both=True).to(model.embedding.weight)
    model.embedding.weight.copy_(vectors * (SPREAD / vectors.std(correction=0).clamp_min(1e-12)))
    points = block.attention_norm(model.embedding.weight * model.scale)
    start_from_kernel(block.attention, points, kernel, temperature=temperature)


@torch.no_grad()
def first_layer_terms(model: LanguageModel, tokens: Tensor) -> PositionalTerms:
    """The scores of the first layer of a language model in parts of content and of place.

    A norm divides the sum of both by one number a point, which is kept; its shift goes with the place.

    Shapes: tokens (b, n); each part (b, n, n), over all heads.

    Raises:
        BadInput: positions are not learned.
    """
    if model.positions.kind != "learned":
        raise BadInput(f"first_layer_terms: positions are {model.positions.kind}, expected learned ones")
    block: Any = model.blocks[0]
    norm, attention = block.attention_norm, block.attention
    parts = (
        model.embedding(tokens) * model.scale,
        model.positions.table[: tokens.shape[1]].expand(len(tokens), -1, -1),
    )
    spread = ((parts[0] + parts[1]).var(-1, keepdim=True, correction=0) + norm.eps).sqrt()
    content, place = ((part - part.mean(-1, keepdim=True)) / spread * norm.weight for part in parts)
    return positional_terms(content, place + norm.bias, attention.query.weight.mT, attention.key.weight.mT)


def circuit_figures(
    model: LanguageModel, statistic: Tensor, words: Tensor, *, prefix: str = ""
) -> dict[str, float]:
    """How the circuits of the first layer agree with a statistic, with chance and the transpose beside.

    Shapes: statistic (v, v), row the later word; words (v,).

    Example:
        >>> model = LanguageModel(20, width=8, depth=1, heads=1)
        >>> found = circuit_figures(model, torch.randn(9, 9), torch.arange(9))
        >>> sorted(found)[:3]
        ['asymmetry', 'calls', 'calls_shuffled']
    """
    read = read_circuits(model, words, unembed=unembedding(model, words))[0]
    figures = {"asymmetry": asymmetry_index(read.looks.mean(0))}
    for name, kernel in (("looks", read.looks), ("calls", read.calls)):
        if kernel is None:
            continue
        found = compare_kernels(kernel.mean(0), statistic)
        figures |= {
            name: found.value,
            f"{name}_transposed": found.transposed,
            f"{name}_shuffled": found.shuffled,
            f"{name}_spread": found.spread,
        }
    return {f"{prefix}{name}": value for name, value in figures.items()}


def next_word_loss(tokens: Tensor, context: int) -> Callable[[Any, Tensor, Tensor], Tensor]:
    """The loss of a language model on windows of a text, for `fit_resident`; cases are where windows begin.

    Example:
        >>> model, text = LanguageModel(5, width=4, depth=1, heads=1), torch.arange(20) % 5
        >>> next_word_loss(text, 8)(model, torch.tensor([0, 3]), torch.tensor([0, 3])).shape
        torch.Size([])
    """
    steps = torch.arange(context + 1, device=tokens.device)

    def loss(model: Any, first: Tensor, _: Tensor) -> Tensor:
        window = tokens[first[:, None] + steps]
        return F.cross_entropy(model(window[:, :-1]).flatten(0, 1), window[:, 1:].flatten())

    return loss


def _order_scores(kernel: CooccurrenceKernel, texts: Tensor, pairs: str) -> Tensor:
    entries = kernel.restrict(texts)  # (c, n, n)
    n = texts.shape[1]
    if pairs == "previous":
        return _sums(entries.diagonal(-1, 1, 2))
    rows, columns = torch.tril_indices(n, n, -1)
    below = entries[:, rows, columns]
    return _sums(below if pairs == "causal" else torch.cat([below, entries[:, columns, rows]], dim=1))


def _sums(terms: Tensor) -> Tensor:
    """Sums that do not hang on the order of their terms, not even in rounding: equal sums are then equal."""
    return terms.sort(dim=1).values.sum(1)
