"""Graphs from attention where the causes are known: linear models, and a Transformer trained on cascades."""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from statistics import fmean

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from kernelhead.data import Cascades, draw_cascades, linear_model
from kernelhead.errors import Degenerate, unknown
from kernelhead.inspection import (
    AncestralGraph,
    Explanation,
    HeadPatterns,
    attention_correlation,
    attention_graph,
    explanation_baselines,
    graph_baselines,
    head_patterns,
    minimal_explanation,
    skeleton_f1,
)
from kernelhead.inspection.explanations import PREFIX
from kernelhead.models import Block, Sizes, build_attention
from kernelhead.models.blocks import Positions
from kernelhead.nn import evaluating
from kernelhead.rng import generator, seeded
from kernelhead.training.grid import Job, Outcome
from kernelhead.training.resident import fit_resident
from kernelhead.training.settings import course_of, jobs_from, settings_from
from kernelhead.training.table import Claim, Page

GRAPHS = ("icd", "covariance", "pc", "fci")
READINGS = (*GRAPHS, "correlation", "attention", "random")


@dataclass(frozen=True)
class Settings:
    """What a recipe may say; see `linear_model`, `draw_cascades` and `attention_graph`.

    Args:
        reading: what makes the skeletons: graphs, or baselines with as many edges.
        cases: models or sequences that are read.
        n: samples of a test; the width of the layer if 0.
        neighbours: of a variable or an item, in the graph that is to be found.
        positions: of a sequence, "learned" or "none".
        hidden: share of items that are masked in training.
        explained: sequences of which one prediction is explained.
    """

    reading: str = "icd"
    cases: int = 40
    nodes: int = 8
    neighbours: float = 2.0
    n: int = 768
    alpha: float = 0.01
    largest: int = 3
    ridge: float = 0.0
    items: int = 60
    length: int = 10
    train: int = 10000
    width: int = 64
    depth: int = 2
    heads: int = 4
    positions: str = "learned"
    hidden: float = 0.2
    explained: int = 100
    steps: int = 1000
    batch: int = 128
    lr: float = 3e-3
    warmup: float = 0.1
    weight_decay: float = 0.01
    precision: str = "32"


class ItemModel(nn.Module):
    """Encoder of sequences of items that says of every place which item it is; the last token hides an item.

    Shapes: tokens (b, n) whole numbers up to `items`; returns (b, n, items).

    Example:
        >>> model = ItemModel(5, length=4, width=8, depth=1, heads=2)
        >>> model(torch.tensor([[0, 5, 2, 1]])).shape
        torch.Size([1, 4, 5])
    """

    def __init__(
        self, items: int, *, length: int, width: int, depth: int, heads: int, positions: str = "learned"
    ) -> None:
        super().__init__()
        self.items = items
        self.embedding = nn.Embedding(items + 1, width)
        nn.init.normal_(self.embedding.weight, std=0.1)
        self.positions = Positions(width, kind=positions, longest=length)
        sizes = Sizes(width, heads, rank=16, landmarks=32)
        self.blocks = nn.ModuleList(
            Block(build_attention("softmax", sizes), inner=4 * width) for _ in range(depth)
        )
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, items)

    def forward(self, tokens: Tensor) -> Tensor:
        """Scores of items at every place."""
        x = self.positions(self.embedding(tokens))
        for block in self.blocks:
            x = block(x)
        scores: Tensor = self.head(self.norm(x))
        return scores


def hidden_loss(share: float) -> Callable[[nn.Module, Tensor, Tensor], Tensor]:
    """Cross-entropy of items that are hidden at random, for `fit_resident`; the items are their own targets.

    Example:
        >>> model = ItemModel(5, length=4, width=8, depth=1, heads=2)
        >>> tokens = torch.tensor([[0, 3, 2, 1]])
        >>> hidden_loss(0.5)(model, tokens, tokens).shape
        torch.Size([])
    """

    def loss(model: nn.Module, tokens: Tensor, targets: Tensor) -> Tensor:
        hidden = torch.rand(tokens.shape, device=tokens.device) < share
        scores = model(tokens.masked_fill(hidden, model.items))  # type: ignore[arg-type]
        each = F.cross_entropy(scores.mT, targets, reduction="none")
        return (each * hidden).sum() / hidden.sum().clamp_min(1)

    return loss


def causal_jobs(recipes: Path, *, protocol: str, seeds: int, root: Path | None = None) -> list[Job]:
    """The jobs of every set and variant in a recipe file; see `jobs_from`.

    Raises:
        BadInput: the file is not such a file.
        UnknownName: no such protocol, set or entry.
    """
    return jobs_from("causal", recipes, Settings, sets=SOURCES, protocol=protocol, seeds=seeds)


def causal_run(job: Job, *, root: Path | None = None) -> Outcome:
    """Find the skeletons of known graphs in attention, by the reading that a job says.

    Raises:
        BadInput: a setting is out of range.
        MissingExtra: causal-learn is asked for and not installed.
        UnknownName: no such reading.
    """
    settings = settings_from(Settings, job.key, job.recipe)
    if settings.reading not in READINGS:
        raise unknown(job.key, "reading", settings.reading, READINGS)
    return SOURCES[job.data](settings, job.seed)


def _linear(settings: Settings, seed: int) -> Outcome:
    """Attention that is exactly that of a model; baselines are told the true number of edges."""
    scores, seconds = [], 0.0
    for case in range(settings.cases):
        model = linear_model(
            settings.nodes, neighbours=settings.neighbours, seed=seed * settings.cases + case
        )
        entries, truth = torch.from_numpy(model.attention), torch.from_numpy(model.skeleton)
        started = time.perf_counter()
        found = _skeleton(settings, HeadPatterns("", entries[None]), int(truth.sum()) // 2, case)
        seconds += time.perf_counter() - started
        scores.append(skeleton_f1(found, truth))
    return Outcome({"test_f1": fmean(scores), "graph_ms": 1e3 * seconds / settings.cases})


def _cascades(settings: Settings, seed: int) -> Outcome:
    """A model of hidden items, its last attention as the mean of heads, and one case a sequence."""
    test = _drawn(settings, max(settings.cases, settings.explained), seed, 1)
    # Readings share a model where they share a process.
    model, seconds = _trained(replace(settings, reading="icd"), seed)
    figures = _of_skeletons(settings, model, test) | _of_explanations(settings, model, test, seed)
    return Outcome({**figures, "fit_seconds": seconds}, sum(each.numel() for each in model.parameters()))


SOURCES = {"linear": _linear, "dense": _linear, "cascades": _cascades, "no positions": _cascades}


def _drawn(settings: Settings, count: int, seed: int, part: int) -> Cascades:
    return draw_cascades(
        count,
        items=settings.items,
        length=settings.length,
        neighbours=settings.neighbours,
        graph=seed,
        seed=2 * seed + part,
    )


@lru_cache(maxsize=2)
def _trained(settings: Settings, seed: int) -> tuple[ItemModel, float]:
    """A model on the CPU, and the seconds that its steps took."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    with seeded(seed):
        model = ItemModel(
            settings.items,
            length=settings.length,
            width=settings.width,
            depth=settings.depth,
            heads=settings.heads,
            positions=settings.positions,
        ).to(device)
    tokens = torch.from_numpy(_drawn(settings, settings.train, seed, 0).sequences).to(device)
    course = course_of(settings, seed, device)
    fitted = fit_resident(model, tokens, tokens, course, loss=hidden_loss(settings.hidden))
    return model.cpu(), fitted.seconds


def _graph(settings: Settings, read: HeadPatterns) -> AncestralGraph | None:
    """The graph of the mean of heads; none where rows are nearly the same."""
    values = read.values if settings.reading == "covariance" else None
    try:
        return attention_graph(
            read.entries.mean(0),
            n=settings.n or read.width,
            alpha=settings.alpha,
            values=None if values is None else torch.cat([*values], dim=-1),
            method=settings.reading if settings.reading in ("pc", "fci") else "icd",
            largest=settings.largest,
            ridge=settings.ridge,
        )
    except Degenerate:
        return None


def _skeleton(settings: Settings, read: HeadPatterns, edges: int | None, seed: int) -> Tensor:
    """By a graph, empty where there is none; or by a baseline with so many edges, or as many as the graph."""
    entries = read.entries.mean(0)
    if settings.reading in GRAPHS or edges is None:
        graph = _graph(settings, read)
        found = entries.new_zeros(entries.shape, dtype=torch.bool) if graph is None else graph.skeleton
        if settings.reading in GRAPHS:
            return found
        edges = int(found.sum()) // 2
    return graph_baselines(entries, edges, seed=seed)[settings.reading]


def _of_skeletons(settings: Settings, model: ItemModel, test: Cascades) -> dict[str, float]:
    scores, edges, true = [], [], []
    for case in range(settings.cases):
        read = head_patterns(model, torch.from_numpy(test.sequences[case])[None])
        found, truth = _skeleton(settings, read, None, case), torch.from_numpy(test.skeleton(case))
        scores.append(skeleton_f1(found, truth))
        edges.append(int(found.sum()) // 2)
        true.append(int(truth.sum()) // 2)
    return {"test_f1": fmean(scores), "edges": fmean(edges), "true_edges": fmean(true)}


def _of_explanations(settings: Settings, model: ItemModel, test: Cascades, seed: int) -> dict[str, float]:
    """One hidden item of each sequence: is it found, and which others must be hidden for another answer?"""
    places = torch.randint(settings.length, (settings.explained,), generator=generator(seed)).tolist()
    found, prefixes, right = [], [], 0
    for case, place in enumerate(places):
        tokens = torch.from_numpy(test.sequences[case])
        asked = _Asked(model, tokens, place)
        right += asked.answer == int(tokens[place])
        # The graph is about the answer, so that the answer is what stands there.
        read = head_patterns(model, tokens.scatter(0, torch.tensor([place]), asked.answer)[None])
        explained, prefix = _explained(settings, read, asked, place, case)
        found.append(explained)
        prefixes.append(prefix)
    made = {"masked_accuracy": right / settings.explained}
    for name, each in (("explained", found), ("prefix", prefixes)):
        sizes = [one.size for one in each if one.size is not None]
        made[name] = len(sizes) / len(each)
        made[f"{name}_size"] = fmean(sizes) if sizes else 0.0
        made[f"{name}_calls"] = fmean(one.asked for one in each)
    return made


def _explained(
    settings: Settings, read: HeadPatterns, asked: "_Asked", place: int, seed: int
) -> tuple[Explanation, Explanation]:
    """By a graph, or by as many candidates as it has; and by a prefix of what is attended to."""
    entries, graph = read.entries.mean(0), _graph(settings, read)
    found = Explanation((), 0, ()) if graph is None else minimal_explanation(asked, graph, place)
    weights = attention_correlation(entries)[place] if settings.reading == "correlation" else entries[place]
    beside = explanation_baselines(asked, weights, place, count=len(found.candidates), seed=seed)
    chosen = "attention" if settings.reading == "correlation" else settings.reading
    return beside.get(chosen, found), beside[PREFIX]


@dataclass(eq=False)
class _Asked:
    """What a model says of a place that is hidden, and whether it still does where others are too."""

    model: ItemModel
    tokens: Tensor
    place: int

    def __post_init__(self) -> None:
        self.answer = int(self._answers([()])[0])

    def __call__(self, sets: list[tuple[int, ...]]) -> list[bool]:
        changed: list[bool] = (self._answers(sets) != self.answer).tolist()
        return changed

    @torch.no_grad()
    def _answers(self, sets: list[tuple[int, ...]]) -> Tensor:
        tokens = self.tokens.repeat(len(sets), 1)
        for row, chosen in zip(tokens, sets, strict=True):
            row[[self.place, *chosen]] = self.model.items
        with evaluating(self.model):
            return self.model(tokens)[:, self.place].argmax(-1)


CAUSAL_PAGE = Page(
    title="Causal graphs from attention",
    about=(
        "F1 score in % of the skeletons that are found, mean ± deviation over seeds. Linear and dense: "
        "attention is exactly the row-normalised (I - G)^-1 of 40 random models a seed, with two and four "
        "edges a variable, and baselines are told the true number of edges. Cascades: a Transformer learns "
        "hidden items of sequences in which items bring up others, with and without positions; its last "
        "attention, mean over heads, is read for 200 sequences, the truth is the graph among their items, "
        "and baselines have as many edges as the graph by iterative discovery."
    ),
    figures={"clean": "test_f1"},
    labels={"clean": "Nothing is chosen by these figures; models are those of the last step."},
    variants={
        "icd": "iterative causal discovery",
        "covariance": "the same with the covariance of the values",
        "pc": "PC of causal-learn",
        "fci": "FCI of causal-learn",
        "attention": "largest attention",
        "correlation": "largest correlations",
        "random": "random edges",
    },
    claims=(
        Claim("A graph finds more than the largest attention", "icd", "attention"),
        Claim("A graph finds more than the largest correlations", "icd", "correlation"),
        Claim("A graph finds more than chance", "icd", "random"),
        Claim("The covariance of the values helps", "covariance", "icd"),
    ),
    beside={
        "graph_ms": "ms of a skeleton",
        "edges": "edges found",
        "true_edges": "true edges",
        "masked_accuracy": "hidden items found",
        "explained": "predictions changed by up to 3 hidden items",
        "explained_size": "items of such a set",
        "explained_calls": "sets tried",
        "prefix": "changed by a prefix of attention",
        "prefix_size": "items of it",
    },
    scale=100.0,
    unit=" %",
)
