"""Causal language models on a text with words swapped."""

import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from functools import cache
from math import exp
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.robust_rows import ROWS, device, finite, train
from kernelhead.data import read_words, swap_words
from kernelhead.models import LanguageModel
from kernelhead.nn import evaluating
from kernelhead.rng import seeded
from kernelhead.training.resident import Course

EVALUATION = 0  # names every draw of the evaluation
SHARES = (0.05, 0.1)
BATCH = 32
GENERIC = "<unk>"

Tokens = NDArray[np.int64]


@dataclass(frozen=True)
class Recipe:
    """The sizes of a model, how it is trained, and how many tokens it sees before the one it predicts."""

    course: Course
    context: int
    width: int
    depth: int
    heads: int
    rank: int
    landmarks: int


RECIPES = {
    "wikitext2": Recipe(
        course=Course(1500, 32, lr=1e-3, weight_decay=0.05, eta=0.1, precision="bf16"),
        context=256,
        width=128,
        depth=4,
        heads=4,
        rank=16,
        landmarks=32,
    ),
    "chain": Recipe(
        course=Course(40, 16, lr=1e-2, eta=0.1), context=16, width=16, depth=2, heads=2, rank=4, landmarks=8
    ),
}


@dataclass(frozen=True, eq=False)
class Held:
    """The parts of a text, the size of its vocabulary, and its token that stands for any word."""

    train: Tokens
    validation: Tokens
    test: Tokens
    vocabulary: int
    generic: int


@cache
def held(data: str) -> Held:
    """Read a text once; ``chain`` is made up, every token one of the three after its last."""
    if data == "chain":
        steps = np.random.Generator(np.random.Philox(EVALUATION)).integers(1, 4, size=6000)
        parts = np.split(np.cumsum(steps) % 20, [4000, 5000])
        return Held(parts[0], parts[1], parts[2], 20, 0)
    train, validation, test = (read_words(data, split=split) for split in ("train", "validation", "test"))
    words = train.vocabulary
    return Held(train.tokens, validation.tokens, test.tokens, len(words), words.index(GENERIC))


def word_figures(data: str, row: str, seed: int) -> Iterator[dict[str, Any]]:
    """Train one row, keep its last weights, and take its perplexity on the text, clean and swapped."""
    text, recipe = held(data), RECIPES[data]
    with seeded(seed):
        model = LanguageModel(
            text.vocabulary,
            width=recipe.width,
            depth=recipe.depth,
            heads=recipe.heads,
            attention=ROWS[row].attention,
            rank=recipe.rank,
            landmarks=recipe.landmarks,
            iterations=ROWS[row].iterations,
            longest=recipe.context,
        ).to(device())
    sizes = {name: value for name, value in asdict(recipe).items() if name != "course"}
    yield {"recipe": {**sizes, "vocabulary": text.vocabulary}, "cases": {"testing": len(text.test)}}
    x, y = (windows(part, recipe.context) for part in (text.train[:-1], text.train[1:]))
    yield train(model, x, y, replace(recipe.course, seed=seed), _loss)
    started = time.perf_counter()
    yield {
        "validation": perplexity(model, text.validation, text.validation, None, recipe.context),
        "clean": perplexity(model, text.test, text.test, None, recipe.context),
    }
    swapped, unswapped = {}, {}
    for share in SHARES:
        for kind, generic in (("random", None), ("generic", text.generic)):
            # The same places are struck, whatever is put there.
            spoilt, struck = swap_words(
                text.test, share, vocabulary=text.vocabulary, generic=generic, seed=EVALUATION
            )
            swapped[f"{share:.0%} {kind}"] = perplexity(model, spoilt, text.test, ~struck, recipe.context)
        unswapped[f"{share:.0%}"] = perplexity(model, text.test, text.test, ~struck, recipe.context)
    yield {"swapped": swapped, "unswapped": unswapped}
    yield {"evaluation_seconds": time.perf_counter() - started}


def windows(tokens: NDArray[Any], context: int) -> Tensor:
    """A text cut into pieces, (cases, context), on the device; an end that fills none is left out."""
    cases = len(tokens) // context
    return torch.from_numpy(tokens[: cases * context].reshape(cases, context)).to(device())


@torch.no_grad()
def perplexity(
    model: nn.Module, seen: Tokens, meant: Tokens, counted: NDArray[np.bool_] | None, context: int
) -> float | None:
    """Of the meant text given the seen one, over the counted targets; each piece starts from nothing.

    Shapes: seen, meant, counted (n,); all targets count if None.
    """
    counts = np.ones(len(meant), dtype=bool) if counted is None else counted
    inputs, targets, kept = (windows(each, context) for each in (seen[:-1], meant[1:], counts[1:]))
    total = torch.zeros((), dtype=torch.float64, device=inputs.device)
    with evaluating(model):
        for x, y, real in zip(*(each.split(BATCH) for each in (inputs, targets, kept)), strict=True):
            losses = F.cross_entropy(model(x).flatten(0, 1), y.flatten(), reduction="none")
            total += losses[real.flatten()].double().sum()
    mean = float(total) / int(kept.sum())
    return finite(exp(min(mean, 700.0)) if mean == mean else mean)


def _loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(model(x).flatten(0, 1), y.flatten())
