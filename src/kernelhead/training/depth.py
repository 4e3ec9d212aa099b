"""Depth against width at one size: causal language models of bytes, and the depth at which they do best."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import log, log2
from pathlib import Path
from statistics import fmean

import numpy as np
import torch
from numpy.typing import NDArray

from kernelhead.data import read_corpus
from kernelhead.errors import BadInput
from kernelhead.models import LanguageModel, count_params
from kernelhead.rng import seeded
from kernelhead.training.grid import Job, Outcome
from kernelhead.training.ledger import DONE, Row
from kernelhead.training.resident import fit_resident
from kernelhead.training.settings import course_of, jobs_from, settings_from
from kernelhead.training.table import Claim, Page
from kernelhead.training.words import Windows, text_loss

BYTES = 256
# Weights without embeddings, biases and norms.
BUDGETS = {"0.15M": 153_600, "2.5M": 2_457_600, "9.8M": 9_830_400}
DEPTHS = (2, 4, 8, 16, 32)
STRETCHES = 64  # of a text that is judged by a part


@dataclass(frozen=True)
class Settings:
    """All that a run of this field is made from; see `LanguageModel` and `Course` for the words.

    Args:
        corpus: whose bytes are learned, see `read_corpus`.
        context: bytes of a window, and the most that a prediction can see.
        rate: learning rate times the width, so that each width has its own.
        judged: bytes of the test part that the loss is taken over.
        compiled: whether the loss is compiled on a GPU; a step is one graph either way.
    """

    corpus: str = "imdb"
    context: int = 256
    width: int = 320
    depth: int = 2
    heads: int = 8
    steps: int = 1000
    batch: int = 128
    rate: float = 0.6
    warmup: float = 0.1
    weight_decay: float = 0.1
    clip: float = 1.0
    precision: str = "bf16"
    judged: int = 2**20
    compiled: bool = False

    @property
    def lr(self) -> float:
        """The learning rate of the width."""
        return self.rate / self.width

    def model(self) -> LanguageModel:
        """The network, what its blocks add scaled down by the root of twice the depth at the start."""
        made = LanguageModel(
            BYTES, width=self.width, depth=self.depth, heads=self.heads, longest=self.context
        )
        with torch.no_grad():
            for name, weight in made.blocks.named_parameters():
                if name.endswith(("attention.out.weight", "feed_forward.3.weight")):
                    weight.mul_((2 * self.depth) ** -0.5)
        return made


def depth_jobs(recipes: Path, *, protocol: str, seeds: int, root: Path | None = None) -> list[Job]:
    """The jobs of every budget and depth in a recipe file; see `jobs_from`.

    Raises:
        BadInput: the file is not such a file.
        UnknownName: no such protocol, budget or entry.
    """
    return jobs_from("depth", recipes, Settings, sets=BUDGETS, protocol=protocol, seeds=seeds)


def depth_run(job: Job, *, root: Path | None = None) -> Outcome:
    """Train a language model of bytes for all its steps and take the loss of the last weights.

    Raises:
        BadInput: the data are not here, or have fewer windows than a batch.
    """
    settings = settings_from(Settings, job.key, job.recipe)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    train, test = (read_corpus(settings.corpus, split=part, root=root) for part in ("train", "test"))
    text, judged = (
        torch.from_numpy(part.copy()).to(device) for part in (train, _sampled(test, settings.judged))
    )
    with seeded(job.seed):
        model = settings.model().to(device)
    course, context = course_of(settings, job.seed, device), settings.context
    windows = Windows(text, context)
    fitted = fit_resident(
        model,
        windows.starts,
        windows.starts,
        course,
        loss=windows.loss,
        compiled=settings.compiled and device.type == "cuda",
    )
    found = text_loss(model, judged.int(), context=context, precision=course.precision, batch=settings.batch)
    figures = {
        "test_loss": found,
        "test_bits": found / log(2),
        "train_loss": float(np.mean(fitted.losses[-100:])),
        "block_params": float(count_params(settings.depth, settings.width)),
        "steps_a_second": fitted.steps_a_second,
        "fit_seconds": fitted.seconds,
        "peak_gib": fitted.peak_gib,
        "lr": settings.lr,
        "train_bytes": float(len(train)),
    }
    return Outcome(figures, sum(each.numel() for each in model.parameters()))


@dataclass(frozen=True)
class Optimum:
    """The depth at which networks of one budget do best.

    Attributes:
        depth: of the lowest mean loss.
        between: lowest point of a parabola through that depth and both neighbours, on a log axis; the depth
            itself where it is the first or the last.
        loss: the mean at `depth`.
        lead: by how much the next best depth is worse.
    """

    depth: int
    between: float
    loss: float
    lead: float


def best_depths(rows: Sequence[Row]) -> dict[str, Optimum]:
    """The best depth of every budget in a ledger of the field, by means over seeds.

    Raises:
        BadInput: a budget has fewer than two depths.

    Example:
        >>> row = {"data": "2.5M", "protocol": "clean", "status": "done"}
        >>> losses = {"2": 1.5625, "4": 0.0625, "8": 0.5625}
        >>> rows = [{**row, "variant": name, "figures": {"test_loss": loss}} for name, loss in losses.items()]
        >>> found = best_depths(rows)["2.5M"]
        >>> found.depth, round(found.between, 2)
        (4, 4.76)
    """
    losses: dict[str, dict[int, list[float]]] = {}
    for row in rows:
        if row["status"] == DONE:
            found = losses.setdefault(row["data"], {})
            found.setdefault(int(row["variant"]), []).append(row["figures"]["test_loss"])
    best = {}
    for data, found in losses.items():
        if len(found) < 2:
            raise BadInput(f"best_depths: {data} has the depth {[*found]} only, expected two or more")
        means = {depth: fmean(found[depth]) for depth in sorted(found)}
        depths, order = [*means], sorted(means, key=lambda depth: means[depth])
        place = depths.index(order[0])
        between = float(order[0])
        if 0 < place < len(depths) - 1:
            near = depths[place - 1 : place + 2]
            bend, slope, _ = np.polyfit([log2(depth) for depth in near], [means[depth] for depth in near], 2)
            between = float(2 ** (-slope / (2 * bend)))
        best[data] = Optimum(order[0], between, means[order[0]], means[order[1]] - means[order[0]])
    return best


def _sampled(text: NDArray[np.uint8], most: int) -> NDArray[np.uint8]:
    """All of a text, or stretches at even distances that are `most` bytes together."""
    if len(text) <= most:
        return text
    size = max(most // STRETCHES, 1)
    starts = np.linspace(0, len(text) - size, STRETCHES).astype(np.int64)
    return np.concatenate([text[start : start + size] for start in starts])


DEPTH_PAGE = Page(
    title="Depth against width",
    about=(
        "Loss on test bytes in thousandths of a nat, lower is better, mean ± deviation over seeds, with the "
        "number of seeds. Causal language models of bytes at budgets of weights, each as few wide or many "
        "narrow layers, which see the same number of bytes at learning rates that go as one over the width. "
        "The fitted law has 5.0 layers for 2.5 million weights and 10.6 for 9.8 million, and so expects the "
        "best depth to double about once; 0.15 million are below its range, and small enough for a CPU. See "
        "the page on depth."
    ),
    figures={"clean": "test_loss"},
    labels={"clean": "All steps are made and the last weights are tested; nothing is chosen."},
    variants={str(depth): f"{depth} layers" for depth in DEPTHS},
    claims=tuple(
        Claim(f"{deep} layers are better than {shallow}", str(deep), str(shallow))
        for shallow, deep in pairwise(DEPTHS)
    ),
    beside={
        "test_bits": "bits a byte",
        "steps_a_second": "steps/s",
        "fit_seconds": "seconds of the steps",
        "lr": "learning rate",
    },
    scale=1000.0,
    higher=False,
)
