"""Co-occurrence as attention: what it knows without training, its vectors, and what a network makes of it."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from kernelhead.data import BREAK, Words, choose_words, count_words, read_sentences, read_words, token_blocks
from kernelhead.data.text import END, UNKNOWN
from kernelhead.decomposition import factor_pairs
from kernelhead.errors import BadInput, missing_extra, unknown
from kernelhead.kernels import CooccurrenceKernel
from kernelhead.models import LanguageModel
from kernelhead.rng import seeded
from kernelhead.training.cooccurrence_tasks import (
    circuit_figures,
    first_layer_terms,
    hidden_words,
    neighbour_scores,
    next_word_loss,
    order_figures,
    retrieval_figures,
    shuffled_kernel,
    start_language_model,
    stretches,
)
from kernelhead.training.grid import Job, Outcome
from kernelhead.training.resident import fit_resident
from kernelhead.training.settings import course_of, jobs_from, settings_from
from kernelhead.training.table import Claim, Page
from kernelhead.training.words import text_loss

RANDOM, SHUFFLED = "random", "shuffled"
STARTS = (RANDOM, "directed", "symmetric", SHUFFLED)
ORDERS = {"symmetric": "causal", "both ways": "all", "directed": "causal", "previous": "previous"}
HIDDEN = ("unigram", "profiles", "directed", "row", "softmax", "none")
SKIP_GRAM, CBOW = "skip-gram", "cbow"
VECTORS = ("symmetric", "directed", SKIP_GRAM, CBOW)


@dataclass(frozen=True)
class Settings:
    """All that a run of this field is made from; see `CooccurrenceKernel` and `Course` for the words.

    Args:
        method: what is asked; the names differ from task to task.
        text: to learn from and to test on, see `read_words`.
        words: most frequent words that are known; others are left out, or are one word to a network.
        cases: stretches, or hidden words, that are tested on.
        length: words of a stretch.
        common: most frequent words that are never hidden.
        vectors: width of word vectors.
        power: of the singular values in a vector.
        least: occurrences of a word that gets a vector.
        passes: of gensim's word2vec over the text.
        read: words whose circuits are read.
        watched: tokens of the validation part that networks are judged by.
        early: step at which the head start is measured; the validation part is looked at as often.
    """

    method: str = "directed"
    text: str = "wikitext2"
    words: int = 5000
    window: int = 5
    weighting: str = "harmonic"
    association: str = "ppmi"
    smoothing: float = 0.75
    cases: int = 2000
    length: int = 10
    common: int = 50
    vectors: int = 100
    power: float = 0.5
    least: int = 5
    passes: int = 5
    read: int = 500
    early: int = 100
    temperature: float = 1.0
    width: int = 128
    heads: int = 1
    depth: int = 1
    context: int = 64
    steps: int = 1200
    batch: int = 16
    lr: float = 2e-3
    warmup: float = 0.05
    weight_decay: float = 0.01
    clip: float = 1.0
    precision: str = "32"
    watched: int = 8192

    def kernel(
        self, tokens: NDArray[np.int32], *, directed: bool, smoothing: float | None = None
    ) -> CooccurrenceKernel:
        """The kernel of a text in memory."""
        return CooccurrenceKernel.count(
            [tokens],
            self.words,
            window=self.window,
            weighting=self.weighting,
            directed=directed,
            transform=self.association,
            smoothing=self.smoothing if smoothing is None else smoothing,
        )


def cooccurrence_jobs(recipes: Path, *, protocol: str, seeds: int, root: Path | None = None) -> list[Job]:
    """The jobs of every task and method in a recipe file; see `jobs_from`.

    Raises:
        BadInput: the file is not such a file.
        UnknownName: no such protocol, task or entry.
    """
    return jobs_from("cooccurrence", recipes, Settings, sets=TASKS, protocol=protocol, seeds=seeds)


def cooccurrence_run(job: Job, *, root: Path | None = None) -> Outcome:
    """Do one task by the method that a job says.

    Raises:
        BadInput: the data are not here, or are too few.
        MissingExtra: gensim is not installed, where its word2vec or its test sets are asked for.
        UnknownName: no such method.
    """
    settings = settings_from(Settings, job.key, job.recipe)
    known, run = TASKS[job.data]
    if settings.method not in known:
        raise unknown(job.key, "method", settings.method, known)
    return run(settings, job.seed, root)


def known_tokens(text: Words, words: int) -> NDArray[np.int32]:
    """A text with its most frequent words only, `BREAK` in the place of the ends of lines.

    Words that stand for others are left out; places are those of the words that are left.

    Raises:
        BadInput: the text has fewer words.

    Example:
        >>> text = Words("one", np.array([2, 0, 1, 3, 2]), ("<eos>", "<unk>", "a", "b"))
        >>> known_tokens(text, 1)
        array([ 0, -1,  0], dtype=int32)
    """
    kept = [place for place, word in enumerate(text.vocabulary) if word not in (UNKNOWN, END)]
    if words > len(kept):
        raise BadInput(f"known_tokens: {words} words, but {text.name!r} has {len(kept)}")
    place = np.full(len(text.vocabulary), BREAK - 1, np.int32)
    place[kept[:words]] = np.arange(words)
    if END in text.vocabulary:
        place[text.vocabulary.index(END)] = BREAK
    tokens = place[text.tokens]
    return tokens[tokens >= BREAK]


@lru_cache(maxsize=3)
def _part(text: str, part: str, root: Path | None) -> Words:
    """Of several jobs in one process the first reads for all."""
    return read_words(text, split=part, root=root)


def _parts(settings: Settings, root: Path | None, *parts: str) -> list[Words]:
    return [_part(settings.text, part, root) for part in parts]


def _order(settings: Settings, seed: int, root: Path | None) -> Outcome:
    train, test = (known_tokens(part, settings.words) for part in _parts(settings, root, "train", "test"))
    # Smoothing takes the sides of a kernel apart; a symmetric one has none.
    symmetric = settings.method == "symmetric"
    kernel = settings.kernel(train, directed=not symmetric, smoothing=1.0 if symmetric else None)
    texts = stretches(test, length=settings.length, count=settings.cases, seed=seed)
    found = order_figures(kernel, texts, pairs=ORDERS[settings.method], seed=seed)
    return Outcome({"score": found.score, "ties": found.ties})


def _hidden(settings: Settings, seed: int, root: Path | None) -> Outcome:
    train, test = (known_tokens(part, settings.words) for part in _parts(settings, root, "train", "test"))
    kernel = settings.kernel(train, directed=settings.method == "directed")
    hidden = hidden_words(
        test, window=settings.window, count=settings.cases, least=settings.common, seed=seed
    )
    counts = torch.from_numpy(np.bincount(train[train >= 0], minlength=settings.words).astype(np.float64))
    found = retrieval_figures(neighbour_scores(settings.method, kernel, counts), hidden)
    return Outcome({"score": found["reciprocal_rank"], "hit_10": found["hit_10"]})


def _similarity(settings: Settings, seed: int, root: Path | None) -> Outcome:
    """Lower-cased words, as the sets have them; every method gets the same sentences and words."""
    (text,) = _parts(settings, root, "train")
    sentences = [[word.lower() for word in line] for line in read_sentences(text) if line]
    started = time.perf_counter()
    if settings.method in (SKIP_GRAM, CBOW):
        words, vectors = _word2vec(settings, sentences, seed)
    else:
        directed = settings.method == "directed"
        words = choose_words(count_words(sentences), least=settings.least)
        kernel = CooccurrenceKernel.count(
            token_blocks(sentences, words),
            len(words),
            window=settings.window,
            weighting=settings.weighting,
            directed=directed,
            transform=settings.association,
            smoothing=settings.smoothing,
        )
        factors = factor_pairs(kernel, rank=settings.vectors // (1 + directed), seed=seed)
        vectors = factors.vectors(power=settings.power, both=directed).float().numpy()
    seconds = time.perf_counter() - started
    return Outcome({**similarity_figures(words, vectors), "fit_seconds": seconds})


def similarity_figures(words: tuple[str, ...], vectors: NDArray[np.float32]) -> dict[str, float]:
    """Rank correlation with WordSim-353 and SimLex-999, and the share of analogies, by gensim and its files.

    Shapes: vectors (words, width).

    Raises:
        MissingExtra: gensim is not installed.
    """
    try:
        from gensim.models import KeyedVectors
        from gensim.test.utils import datapath
    except ImportError:
        raise missing_extra("similarity_figures", "gensim", "test") from None
    held = KeyedVectors(vectors.shape[1])
    held.add_vectors([*words], vectors)
    pairs = {
        name: held.evaluate_word_pairs(datapath(file), restrict_vocab=len(words))
        for name, file in (("score", "wordsim353.tsv"), ("simlex", "simlex999.txt"))
    }
    right, sections = held.evaluate_word_analogies(datapath("questions-words.txt"), restrict_vocab=len(words))
    asked = sum(len(sections[-1][side]) for side in ("correct", "incorrect"))
    figures = {name: float(found[1].statistic) for name, found in pairs.items()}
    unknown_pairs = float(pairs["score"][2])
    return {**figures, "analogies": float(right), "analogies_asked": float(asked), "unknown": unknown_pairs}


def _word2vec(
    settings: Settings, sentences: list[list[str]], seed: int
) -> tuple[tuple[str, ...], NDArray[np.float32]]:
    try:
        from gensim.models import Word2Vec
    except ImportError:
        raise missing_extra("cooccurrence", "gensim", "test") from None
    model = Word2Vec(
        sentences,
        vector_size=settings.vectors,
        window=settings.window,
        min_count=settings.least,
        sg=int(settings.method == SKIP_GRAM),
        epochs=settings.passes,
        seed=seed + 1,
        workers=1,
    )
    return tuple(model.wv.index_to_key), model.wv.vectors


def _start(settings: Settings, seed: int, root: Path | None) -> Outcome:
    """A causal language model from a random start or from a kernel: what it gains over words' frequency."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    train, valid = _parts(settings, root, "train", "validation")
    if settings.words > len(train.vocabulary):
        raise BadInput(f"head start: {settings.words} words, but {train.name!r} has {len(train.vocabulary)}")
    other = min(train.vocabulary.index(UNKNOWN), settings.words - 1)
    coded = [
        np.where(part.tokens < settings.words, part.tokens, other).astype(np.int32) for part in (train, valid)
    ]
    tokens, watched = (torch.from_numpy(part).long().to(device) for part in coded)
    watched = watched[: settings.watched]
    shares = (torch.bincount(tokens, minlength=settings.words) + 1.0) / (len(tokens) + settings.words)
    unigram = float(-shares.log()[watched[1:]].mean())
    directed = settings.kernel(coded[0], directed=True)
    with seeded(seed):
        model = LanguageModel(
            settings.words,
            width=settings.width,
            depth=settings.depth,
            heads=settings.heads,
            longest=settings.context,
            tied=False,
        )
    if settings.method != RANDOM:
        kernel = settings.kernel(coded[0], directed=False) if settings.method == "symmetric" else directed
        kernel = shuffled_kernel(kernel, seed=seed) if settings.method == SHUFFLED else kernel
        start_language_model(model, kernel, temperature=settings.temperature)
    read = torch.arange(min(settings.read, settings.words))
    statistic = directed.restrict(read).float()
    figures = circuit_figures(model, statistic, read, prefix="start_")
    model = model.to(device)
    starts = torch.arange(0, len(tokens) - settings.context - 1, settings.context, device=device)
    fitted = fit_resident(
        model,
        starts,
        starts,
        course_of(settings, seed, device),
        loss=next_word_loss(tokens, settings.context),
        watch=lambda net: -text_loss(net, watched, context=settings.context),
        every=settings.early,
    )
    model = model.cpu()
    terms = first_layer_terms(model, watched[: 16 * settings.context].view(-1, settings.context).cpu())
    return Outcome(
        {
            "score": unigram + fitted.watched[0],
            "final_gain": unigram + max(fitted.watched),
            "unigram_loss": unigram,
            **figures,
            **circuit_figures(model, statistic, read),
            **{f"share_{name}": share for name, share in terms.shares().items()},
        },
        sum(each.numel() for each in model.parameters()),
        curves={"gain": [unigram + each for each in fitted.watched]},
    )


TASKS: dict[str, tuple[tuple[str, ...], Callable[[Settings, int, Path | None], Outcome]]] = {
    "order": (tuple(ORDERS), _order),
    "hidden word": (HIDDEN, _hidden),
    "similarity": (VECTORS, _similarity),
    "head start": (STARTS, _start),
}

COOCCURRENCE_PAGE = Page(
    title="Co-occurrence as attention",
    about=(
        "Figures times 100, mean ± deviation over seeds. Order: how often ten words in a row of the test "
        "part score above the same words in another order, ties counted half. Hidden word: mean "
        "reciprocal rank of a word of the test part among all that are known, from five neighbours on "
        "each side, the fifty most frequent words left out; nothing is trained. Similarity: rank "
        "correlation of cosines with WordSim-353, for vectors of the same words from the same sentences. "
        "Head start: nats by which a language model of one layer is better than the frequency of words "
        "after the first hundred steps."
    ),
    figures={"clean": "score"},
    labels={"clean": "Of the text the test part is looked at, or the validation part for networks."},
    variants={
        "unigram": "frequency alone",
        "symmetric": "symmetric kernel",
        "directed": "directed kernel",
        "both ways": "directed kernel, all pairs",
        "previous": "directed kernel, previous word",
        "log": "directed logarithm of counts",
        "profiles": "symmetric rows, Q S",
        "row": "rows by shares, Norm(M) Q S",
        "softmax": "softmax(M) Q S",
        "none": "as published, M Q S",
        "skip-gram": "word2vec of gensim, skip-gram",
        "cbow": "word2vec of gensim, CBOW",
        "random": "random start",
        "shuffled": "start from the shuffled kernel",
    },
    claims=(
        Claim("A directed kernel is better than a symmetric one", "directed", "symmetric"),
        Claim("Neighbours tell more than frequency", "profiles", "unigram"),
        Claim("Direction tells more of a hidden word", "directed", "profiles"),
        Claim("The published prediction beats the plain rows", "none", "profiles"),
        Claim("Vectors by KSVD are better than skip-gram", "symmetric", "skip-gram"),
        Claim("Vectors by KSVD are better than CBOW", "symmetric", "cbow"),
        Claim("A directed kernel is better than a random start", "directed", "random"),
        Claim("A directed kernel is better than a shuffled one", "directed", "shuffled"),
    ),
    beside={
        "ties": "ties",
        "hit_10": "among ten",
        "simlex": "SimLex-999",
        "analogies": "analogies",
        "fit_seconds": "s to fit",
        "final_gain": "nats at the end",
        "looks": "QK with ppmi",
        "looks_transposed": "QK transposed",
        "calls": "OV with ppmi",
        "calls_transposed": "OV transposed",
        "start_calls": "OV at the start",
        "asymmetry": "asymmetry of QK",
        "share_content": "content by content",
        "share_place": "place by place",
    },
    scale=100.0,
)
