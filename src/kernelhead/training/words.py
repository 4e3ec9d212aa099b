"""Words: causal language models of WikiText-2, judged by their perplexity."""

from dataclasses import dataclass
from math import exp
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from kernelhead.data import read_words
from kernelhead.errors import BadInput, unknown
from kernelhead.models import LanguageModel
from kernelhead.rng import seeded
from kernelhead.training.grid import Job, Outcome
from kernelhead.training.resident import fit_resident, scores_of
from kernelhead.training.settings import course_of, jobs_from, settings_from
from kernelhead.training.table import Goal, Page

VARIANTS = ("softmax", "primal+", "primal", "linear")
SOURCES = {"WikiText-2": "wikitext2"}


@dataclass(frozen=True)
class Settings:
    """All that a run of this field is made from; see `LanguageModel` and `Course` for the words.

    Args:
        context: tokens of a window, and the most that a prediction can see.
        every: steps from one look at the validation part to the next.
    """

    attention: str = "softmax"
    context: int = 256
    width: int = 256
    depth: int = 4
    heads: int = 4
    rank: int = 30
    dropout: float = 0.3
    steps: int = 4000
    warmup: float = 0.1
    batch: int = 64
    every: int = 250
    lr: float = 1e-3
    weight_decay: float = 0.1
    eta: float = 0.0
    clip: float = 1.0
    precision: str = "bf16"
    reduction: str = "sample"
    init: str = "published"

    def __post_init__(self) -> None:
        if self.attention not in VARIANTS:
            raise unknown("text", "variant", self.attention, VARIANTS)

    def model(self, vocabulary: int) -> LanguageModel:
        """The model of a vocabulary; landmarks are ten times the rank and at most the context."""
        return LanguageModel(
            vocabulary,
            width=self.width,
            depth=self.depth,
            heads=self.heads,
            attention=self.attention,
            rank=self.rank,
            landmarks=min(10 * self.rank, self.context),
            dropout=self.dropout,
            longest=self.context,
            init=self.init,
        )


def text_jobs(recipes: Path, *, protocol: str, seeds: int, root: Path | None = None) -> list[Job]:
    """The jobs of every text and variant in a recipe file; see `jobs_from`.

    Raises:
        BadInput: the file is not such a file.
        UnknownName: no such protocol, set, variant or entry.
    """
    return jobs_from(
        "text", recipes, Settings, sets=SOURCES, protocol=protocol, seeds=seeds, variants=VARIANTS
    )


def text_run(job: Job, *, root: Path | None = None) -> Outcome:
    """Train a language model, take its best weights on validation data, and test them once.

    A case of training is a window of the context at any place of the text: its number names a stretch
    of that length, and where in the stretch it begins is drawn anew at every step.

    Raises:
        BadInput: the data are not here, or have fewer windows than a batch.
    """
    settings = settings_from(Settings, job.key, job.recipe)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    train, valid, test = (
        read_words(SOURCES[job.data], split=part, root=root) for part in ("train", "validation", "test")
    )
    tokens, watched, tested = (torch.from_numpy(part.tokens).to(device) for part in (train, valid, test))
    with seeded(job.seed):
        model = settings.model(len(train.vocabulary)).to(device)
    course, context = course_of(settings, job.seed, device), settings.context
    starts = torch.arange(0, max(len(tokens) - 2 * context, 0), context, device=device)

    def loss(net: nn.Module, first: Tensor, _: Tensor) -> Tensor:
        first = first + torch.randint(0, context, first.shape, device=device)
        window = tokens[first[:, None] + torch.arange(context + 1, device=device)]  # (b, context + 1)
        return F.cross_entropy(net(window[:, :-1]).flatten(0, 1), window[:, 1:].flatten())

    fitted = fit_resident(
        model,
        starts,
        starts,
        course,
        loss=loss,
        watch=lambda net: -text_loss(net, watched, context=context, precision=course.precision),
        every=settings.every,
    )
    figures = {
        "test_perplexity": exp(text_loss(model, tested, context=context, precision=course.precision)),
        "valid_perplexity": exp(-max(fitted.watched)),
        "train_loss": float(np.mean(fitted.losses[-100:])),
        "steps_a_second": fitted.steps_a_second,
        "peak_gib": fitted.peak_gib,
        "train_tokens": float(len(train)),
    }
    return Outcome(figures, sum(each.numel() for each in model.parameters()))


def text_loss(
    model: nn.Module, tokens: Tensor, *, context: int, precision: str = "32", batch: int = 32
) -> float:
    """Mean negative log-probability of every token but the first, in windows that do not overlap.

    A token is predicted from those before it in its window, whose first has one token before it and
    whose last has `context`; the last window may be shorter. Perplexity is the exponential.

    Shapes: tokens (n,).

    Args:
        model: from (b, n) tokens to (b, n, v) scores.
        tokens: the text.
        context: tokens of a window.
        precision: "32", "bf16" or "fp16".
        batch: windows of a call.

    Raises:
        BadInput: there is nothing to predict.

    Example:
        >>> class Even(nn.Module):
        ...     def forward(self, tokens):
        ...         return torch.zeros(*tokens.shape, 8)
        >>> round(exp(text_loss(Even(), torch.arange(8), context=3)), 4)
        8.0
    """
    if len(tokens) < 2:
        raise BadInput(f"text_loss: a text of {len(tokens)} tokens, expected two or more")
    whole = (len(tokens) - 1) // context * context
    shown, wanted = tokens[:-1], tokens[1:]
    pairs = [*zip(*(side[:whole].view(-1, context).split(batch) for side in (shown, wanted)), strict=True)]
    pairs += [(shown[None, whole:], wanted[None, whole:])] if whole < len(shown) else []
    total = torch.zeros((), dtype=torch.float64, device=tokens.device)
    for inputs, targets in pairs:
        scores = scores_of(model, inputs, batch=batch, precision=precision)
        total += F.cross_entropy(scores.flatten(0, 1), targets.flatten(), reduction="sum")
    return float(total) / len(shown)


TEXT_PAGE = Page(
    title="Words",
    about=(
        "Test perplexity, lower is better, mean ± deviation over seeds, with the number of seeds. WikiText-2 "
        "at the level of words, 33,278 of them; every token but the first is predicted, in windows of the "
        "context without overlap. Embeddings also score. Primal layers are causal, their weights built from "
        "the tokens so far. The published table has WikiText-103 and a larger network, so that nothing "
        "here stands beside a published figure."
    ),
    figures={"clean": "test_perplexity"},
    labels={"clean": "The validation part of the text chooses the weights; the test part is looked at once."},
    variants={
        "softmax": "softmax Transformer",
        "primal+": "Primal.+",
        "primal": "PrimalFormer",
        "linear": "linear",
    },
    goals=tuple(Goal(name, other) for other in ("softmax", "linear") for name in ("primal+", "primal")),
    beside={"steps_a_second": "steps/s"},
    higher=False,
)
