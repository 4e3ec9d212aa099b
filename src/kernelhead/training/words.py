"""Words: causal language models of WikiText-2 and WikiText-103, judged by their perplexity."""

from dataclasses import dataclass
from functools import partial
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
FOLDERS = {"WikiText-103": "wikitext103"}  # brought along, below the root


@dataclass(frozen=True)
class Settings:
    """All that a run of this field is made from; see `LanguageModel` and `Course` for the words.

    Args:
        context: tokens of a window, and the most that a prediction can see.
        accumulate: parts of a batch, one after another: the scores of all words take memory.
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
    position: str = "learned"
    accumulate: int = 1

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
            position=self.position,
            init=self.init,
        )


def text_jobs(recipes: Path, *, protocol: str, seeds: int, root: Path | None = None) -> list[Job]:
    """The jobs of every text and variant in a recipe file; see `jobs_from`.

    WikiText-103 is there where `root` has the folder wikitext103; see `read_words` for what it holds.

    Raises:
        BadInput: the file is not such a file.
        UnknownName: no such protocol, set, variant or entry.
    """
    return jobs_from(
        "text",
        recipes,
        Settings,
        sets=SOURCES,
        protocol=protocol,
        seeds=seeds,
        variants=VARIANTS,
        folders=FOLDERS,
        root=root,
    )


def text_run(job: Job, *, root: Path | None = None) -> Outcome:
    """Train a language model, take its best weights on validation data, and test them once.

    Raises:
        BadInput: the data are not here, or have fewer windows than a batch.
    """
    settings = settings_from(Settings, job.key, job.recipe)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    train, valid, test = (
        read_words((SOURCES | FOLDERS)[job.data], split=part, root=root)
        for part in ("train", "validation", "test")
    )
    tokens, watched, tested = (torch.from_numpy(part.tokens).to(device) for part in (train, valid, test))
    with seeded(job.seed):
        model = settings.model(len(train.vocabulary)).to(device)
    course, context = course_of(settings, job.seed, device), settings.context
    judged = partial(
        text_loss, context=context, precision=course.precision, batch=max(32 // settings.accumulate, 1)
    )
    windows = Windows(tokens, context)
    fitted = fit_resident(
        model,
        windows.starts,
        windows.starts,
        course,
        loss=windows.loss,
        watch=lambda net: -judged(net, watched),
        every=settings.every,
    )
    figures = {
        "test_perplexity": exp(judged(model, tested)),
        "valid_perplexity": exp(-max(fitted.watched)),
        "train_loss": float(np.mean(fitted.losses[-100:])),
        "steps_a_second": fitted.steps_a_second,
        "peak_gib": fitted.peak_gib,
        "train_tokens": float(len(train)),
    }
    return Outcome(figures, sum(each.numel() for each in model.parameters()))


class Windows:
    """A text as cases for `fit_resident`: windows of the context at any place of it.

    A case is where a stretch of that length begins, and where in the stretch the window does is drawn
    anew at every step.

    Shapes: tokens (n,); starts (cases,).

    Args:
        tokens: the text, whole numbers, on the device of training.
        context: tokens that are predicted, each from those before it in the window.

    Example:
        >>> Windows(torch.arange(20), 4).starts
        tensor([0, 4, 8])
    """

    def __init__(self, tokens: Tensor, context: int) -> None:
        self.tokens, self.context = tokens, context
        self.starts = torch.arange(0, max(len(tokens) - 2 * context, 0), context, device=tokens.device)
        self.places = torch.arange(context + 1, device=tokens.device)

    def loss(self, net: nn.Module, first: Tensor, _: Tensor) -> Tensor:
        """Mean negative log-probability of the tokens of windows in these stretches."""
        first = first + torch.randint(0, self.context, first.shape, device=first.device)
        window = self.tokens[first[:, None] + self.places].long()  # (b, context + 1)
        return F.cross_entropy(net(window[:, :-1]).flatten(0, 1), window[:, 1:].flatten())


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
        total += F.cross_entropy(scores.flatten(0, 1), targets.flatten().long(), reduction="sum")
    return float(total) / len(shown)


TEXT_PAGE = Page(
    title="Words",
    about=(
        "Test perplexity, lower is better, mean ± deviation over seeds, with the number of seeds. Texts are "
        "taken by words, 33,278 in WikiText-2 and 267,735 in WikiText-103; every token but the first is "
        "predicted, in windows of the context without overlap. Embeddings also score. Primal layers are "
        "causal, their weights built from the tokens so far. Nothing was published for WikiText-2 and "
        "these networks; on WikiText-103 ours differ from the released runs in the course of the rate, "
        "GELU for ReLU, a clipped gradient, bf16 and the weight that the KSVD term has in effect."
    ),
    figures={"clean": "test_perplexity"},
    labels={"clean": "The validation part of the text chooses the weights; the test part is looked at once."},
    variants={
        "softmax": "softmax Transformer",
        "primal+": "Primal.+",
        "primal": "PrimalFormer",
        "linear": "linear",
    },
    published={"WikiText-103": {"softmax": 33.0, "primal+": 31.0}},
    published_by="one run",
    goals=tuple(Goal(name, other) for other in ("softmax", "linear") for name in ("primal+", "primal")),
    beside={"steps_a_second": "steps/s"},
    higher=False,
)
