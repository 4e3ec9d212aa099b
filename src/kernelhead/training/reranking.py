"""Re-ranking of lists: its loss and training, and what it gains beside methods that learn nothing."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from kernelhead.data import Features, Images, instance_curves, read_images
from kernelhead.errors import BadInput, unknown
from kernelhead.inspection import mean_average_precision, precision_at
from kernelhead.kernels import unit_rows
from kernelhead.models import (
    RANKERS,
    Ranking,
    RerankerModel,
    expanded_sides,
    first_round,
    list_affinity,
    ranked,
    rerank,
)
from kernelhead.rng import seeded
from kernelhead.shapes import check_axes, check_size, zeroed
from kernelhead.training.course import Course
from kernelhead.training.grid import Job, Outcome
from kernelhead.training.resident import fit_resident, scores_of
from kernelhead.training.settings import course_of, jobs_from, settings_from
from kernelhead.training.steps import Fitted, Loss, Watch
from kernelhead.training.table import Claim, Page

SQUARED = (1e-4, 1e4)  # between which the squared distance of a reconstruction is held
NETWORK = "network"


def contrastive_loss(
    scores: Tensor, same: Tensor, *, temperature: float = 2.0, mask: Tensor | None = None
) -> Tensor:
    r"""Mean over lists of $-\ln (\sum_i y_i e^{s_i / \tau} / \sum_i e^{s_i / \tau})$, the query in both sums.

    Shapes: scores, same, mask (b, n); the query is item 0.

    Args:
        scores: of the items.
        same: True where an item belongs to the query, the query itself among them.
        temperature: tau. Cosines at 2 cannot go below $\ln(1 + N / (P e))$ for P such items and N others.
        mask: True where an item is real.

    Raises:
        ShapeError: the shapes differ.

    Example:
        >>> contrastive_loss(torch.tensor([[1.0, 1.0, 1.0, 1.0]]), torch.tensor([[True, True, False, False]]))
        tensor(0.6931)
    """
    mask = torch.ones_like(same) if mask is None else mask
    check_axes("contrastive_loss", scores=(scores, "b n"), same=(same, "b n"), mask=(mask, "b n"))
    logits = (scores / temperature).masked_fill(~mask, -torch.inf)
    return (logits.logsumexp(1) - logits.masked_fill(~same, -torch.inf).logsumexp(1)).mean()


def reconstruction_loss(made: Tensor, affinity: Tensor, *, mask: Tensor | None = None) -> Tensor:
    r"""Mean over items of $|\hat a_i / |\hat a_i| - a_i / |a_i||$; its square is held in [1e-4, 1e4].

    Shapes: made, affinity (b, n, l); mask (b, n).

    Args:
        made: affinity features as they are made again from what the items became.
        affinity: as they were.
        mask: True where an item is real.

    Raises:
        ShapeError: the shapes differ.

    Example:
        >>> reconstruction_loss(torch.eye(2)[None], 3 * torch.eye(2)[None])
        tensor(0.0100)
    """
    check_axes("reconstruction_loss", made=(made, "b n l"), affinity=(affinity, "b n l"))
    gaps = (unit_rows(made) - unit_rows(affinity)).square().sum(-1).clamp(*SQUARED).sqrt()
    return gaps.mean() if mask is None else (gaps * mask).sum() / mask.sum()


@dataclass(frozen=True, eq=False)
class Lists:
    """Lists to learn from, each a query and its candidates, best first.

    Shapes: points (m, d); items (q, n), places in `points`, the query first and -1 for padding; same (q, n).

    Args:
        points: features of queries and of candidates, on the device that trains.
        items: the lists.
        same: True where an item belongs to the query.
    """

    points: Tensor
    items: Tensor
    same: Tensor


def lists_of(
    points: Tensor, labels: Tensor, k: int, *, sides: str = "none", neighbours: int = 10, alpha: float = 3.0
) -> Lists:
    """The lists of all items of a labelled set that share their label with another one.

    Shapes: points (m, d), labels (m,).

    Args:
        points: features.
        labels: equal where items belong together.
        k: items of a list beside the query; all where there are fewer.
        sides: whose features move towards their neighbours first; see `alpha_qe`.
        neighbours: how many they move towards.
        alpha: power of the similarity.

    Raises:
        ShapeError: labels and points are of different lengths.
        BadInput: no two items have the same label, or as for `expanded`.

    Example:
        >>> lists_of(torch.eye(3), torch.tensor([0, 0, 1]), 2).items
        tensor([[0, 4, 5],
                [1, 3, 5]])
    """
    check_axes("lists_of", points=(points, "m d"), labels=(labels, "m"))
    _, group, counts = labels.unique(return_inverse=True, return_counts=True)
    chosen = (counts[group] > 1).nonzero()[:, 0]
    if not len(chosen):
        raise BadInput(
            f"lists_of: no two of {len(labels)} items have the same label, so nothing can be learned"
        )
    places = torch.arange(len(points), device=points.device)
    query, database = expanded_sides(
        points, points, sides=sides, neighbours=neighbours, alpha=alpha, own=places
    )
    order = first_round(query[chosen], database, k, own=chosen).order
    found = torch.cat([chosen[:, None], order], dim=1)
    items = torch.cat([chosen[:, None], order + len(points)], dim=1)
    return Lists(torch.cat([query, database]), items, labels[found] == labels[chosen, None])


def list_loss(
    points: Tensor,
    *,
    temperature: float = 2.0,
    reconstruction: float = 0.2,
    thinning: float = 0.0,
    jitter: float = 0.0,
) -> Loss:
    """The loss of a re-ranker on a batch of lists, for `fit_resident`; lists are changed at random first.

    Args:
        points: features, (m, d), that lists point into.
        temperature: of the contrastive loss.
        reconstruction: weight of the other one.
        thinning: share of candidates that are taken out of a list, as if the database did not have them.
        jitter: expected length of noise that is added to features of length 1.

    Raises:
        BadInput: a share is not in [0, 1), or a number is out of range.

    Example:
        >>> lists = lists_of(torch.eye(4), torch.tensor([0, 0, 1, 1]), 3)
        >>> model = RerankerModel(4, width=8, heads=2)
        >>> list_loss(lists.points)(model, lists.items, lists.same).shape
        torch.Size([])
    """
    if not (0 <= thinning < 1 and jitter >= 0 and temperature > 0 and reconstruction >= 0):
        raise BadInput(
            f"list_loss: thinning is {thinning}, jitter {jitter}, temperature {temperature}, reconstruction "
            f"{reconstruction}; expected from 0 to below 1, 0 or more, above 0, and 0 or more"
        )

    def loss(model: Any, items: Tensor, same: Tensor) -> Tensor:
        if thinning:
            items, same = thinned(items, same, thinning)
        mask = items >= 0
        held = points[items.clamp_min(0)]
        if jitter:
            held = unit_rows(held + torch.randn_like(held) * (jitter * held.shape[-1] ** -0.5))
        affinity = list_affinity(zeroed(held, mask), model.anchors)
        encoded = model.encode(affinity, mask)
        scores = model.scores(encoded)
        made = contrastive_loss(scores, same & mask, temperature=temperature, mask=mask)
        if not reconstruction:
            return made
        again = model.reconstruction(encoded)
        return made + reconstruction * reconstruction_loss(again, affinity, mask=mask)

    return loss


def thinned(items: Tensor, same: Tensor, share: float) -> tuple[Tensor, Tensor]:
    """Lists without a random share of their candidates: the others move up, padding follows.

    Shapes: items, same (b, n); returns the same.

    Example:
        >>> with seeded(0):
        ...     thinned(torch.arange(7)[None], torch.ones(1, 7, dtype=torch.bool), 0.5)[0]
        tensor([[ 0,  3,  4, -1, -1, -1, -1]])
    """
    out = torch.rand(items.shape, device=items.device) < share
    out[:, 0] = False
    order = out.int().argsort(dim=1, stable=True)
    return items.masked_fill(out, -1).gather(1, order), same.gather(1, order)


def fit_reranker(
    model: RerankerModel,
    lists: Lists,
    course: Course,
    *,
    loss: Loss | None = None,
    watch: Watch | None = None,
    every: int = 100,
    compiled: bool = False,
) -> Fitted:
    """Train a re-ranker on lists that lie on its device; see `fit_resident`.

    Args:
        model: the network.
        lists: to learn from.
        course: how to train; the batch is at most the number of lists.
        loss: of a batch of lists; `list_loss` as published by default.
        watch: a figure of the model, the higher the better; the weights of the highest are left in it.
        every: steps from one look to the next.
        compiled: whether the loss goes through torch.compile.

    Raises:
        BadInput: as for `fit_resident`.

    Example:
        >>> lists = lists_of(torch.eye(4), torch.tensor([0, 0, 1, 1]), 3)
        >>> fit_reranker(RerankerModel(4, width=8, heads=2), lists, Course(2, 4)).steps
        2
    """
    loss = list_loss(lists.points) if loss is None else loss
    return fit_resident(
        model, lists.items, lists.same, course, loss=loss, compiled=compiled, watch=watch, every=every
    )


@dataclass(frozen=True)
class Settings:
    """All that a run of this field is made from; see `Course` for the words of training.

    The `method` is one of `RANKERS` or a "network", which re-orders `k` items by their affinity to `anchors`;
    after training it re-orders `longer` lists where that is not 0. `sides` says whose features move towards
    their neighbours before lists are made, see `alpha_qe`.
    There are `train`, `valid` and `test` instances of curves; of images there are as many of each class, and
    a network of `seen_steps` on the seen classes makes their features.
    """

    method: str = "network"
    sides: str = "none"
    neighbours: int = 10
    alpha: float = 3.0
    k: int = 64
    anchors: int = 64
    longer: int = 0
    attention: str = "softmax"
    width: int = 64
    depth: int = 2
    heads: int = 4
    rank: int = 16
    landmarks: int = 32
    dropout: float = 0.1
    drop_path: float = 0.1
    temperature: float = 2.0
    reconstruction: float = 0.2
    thinning: float = 0.0
    jitter: float = 0.0
    train: int = 300
    valid: int = 60
    test: int = 100
    steps: int = 300
    every: int = 50
    batch: int = 64
    lr: float = 1e-3
    warmup: float = 0.2
    weight_decay: float = 1e-6
    clip: float | None = None
    eta: float = 0.0
    precision: str = "32"
    seen_steps: int = 400

    def model(self) -> RerankerModel:
        """The network, with weights drawn from the global generator."""
        return RerankerModel(
            self.anchors,
            width=self.width,
            depth=self.depth,
            heads=self.heads,
            attention=self.attention,
            rank=self.rank,
            landmarks=self.landmarks,
            dropout=self.dropout,
            drop_path=self.drop_path,
        )


Labelled = tuple[Tensor, Tensor]  # features (m, d) and labels (m,)
Parts = tuple[Labelled, Labelled, Labelled]  # to learn from, to choose by, to test on


def _curves(settings: Settings, seed: int, device: torch.device, root: Path | None) -> Parts:
    sizes = settings.train, settings.valid, settings.test
    train, valid, test = (
        _features(instance_curves(size, seed=3 * seed + part), device) for part, size in enumerate(sizes)
    )
    return train, valid, test


def _features(drawn: Features, device: torch.device) -> Labelled:
    labels = np.unique(drawn.labels or (), return_inverse=True)[1]
    return torch.from_numpy(drawn.x).to(device), torch.from_numpy(labels).to(device)


def _images(name: str) -> Callable[[Settings, int, torch.device, Path | None], Parts]:
    def parts(settings: Settings, seed: int, device: torch.device, root: Path | None) -> Parts:
        sizes = settings.train, settings.valid, settings.test
        return _embedded(name, sizes, settings.seen_steps, seed, device, root)

    return parts


@lru_cache(maxsize=2)
def _embedded(
    name: str, sizes: tuple[int, int, int], steps: int, seed: int, device: torch.device, root: Path | None
) -> Parts:
    """Features by a network that knows half of the classes; the other half is tested on.

    Lists to learn from are of images that the network was not trained on. Of several jobs in one process
    the first trains it for all.
    """
    known, held, test = (read_images(name, split=part, root=root) for part in ("train", "validation", "test"))
    half = len(known.classes) // 2
    seen, unseen = range(half), range(half, len(known.classes))
    x, y = _picked(known, seen, len(known), seed, device)
    with seeded(seed):
        network = Embedder(half, x).to(device)
    fit_resident(network, x, y, Course(steps, min(128, len(y)), lr=2e-3, seed=seed), compiled=False)
    pictures = (
        _picked(held, seen, sizes[0], seed, device),
        _picked(held, seen, sizes[1], seed, device, first=sizes[0]),
        _picked(test, unseen, sizes[2], seed, device),
    )
    found = [(scores_of(network.features, each), labels) for each, labels in pictures]
    return found[0], found[1], found[2]


def _picked(
    images: Images, classes: range, most: int, seed: int, device: torch.device, *, first: int = 0
) -> Labelled:
    """As many of each class, at random, from the `first` on."""
    draws = np.random.Generator(np.random.Philox(seed))
    chosen = [draws.permutation(np.flatnonzero(images.y == label))[first : first + most] for label in classes]
    some = images.take(np.concatenate(chosen))
    return torch.from_numpy(np.asarray(some.x)).to(device), torch.from_numpy(some.y).to(device)


class Embedder(nn.Module):
    """A small network of convolutions whose features lie on the unit sphere, trained to tell classes apart.

    Shapes: x (b, c, h, w), 0 to 255; returns (b, classes).

    Args:
        classes: that it learns.
        x: images, for their size.
        width: of the features.

    Example:
        >>> Embedder(5, torch.zeros(1, 1, 28, 28)).features(torch.zeros(3, 1, 28, 28)).shape
        torch.Size([3, 64])
    """

    def __init__(self, classes: int, x: Tensor, *, width: int = 64) -> None:
        super().__init__()
        check_size("Embedder", "classes", classes)
        channels = (x.shape[1], 16, 32, 64)
        layers: list[nn.Module] = []
        for before, after in pairwise(channels):
            layers += [nn.Conv2d(before, after, 3, stride=2, padding=1), nn.ReLU()]
        convolved = nn.Sequential(*layers, nn.Flatten())
        flat = convolved(torch.zeros(1, *x.shape[1:])).shape[1]
        self.features = nn.Sequential(_Shares(), convolved, nn.Linear(flat, width), _UnitRows())
        self.head = nn.Linear(width, classes, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Ten times the cosines to one direction a class."""
        return 10 * F.linear(self.features(x), unit_rows(self.head.weight))


class _Shares(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.float() / 255


class _UnitRows(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return unit_rows(x)


SOURCES: dict[str, Callable[[Settings, int, torch.device, Path | None], Parts]] = {
    "curves": _curves,
    "MNIST": _images("mnist"),
    "CIFAR-10 grey": _images("cifar10-gray"),
}


def rerank_jobs(recipes: Path, *, protocol: str, seeds: int, root: Path | None = None) -> list[Job]:
    """The jobs of every set and variant in a recipe file; see `jobs_from`.

    Raises:
        BadInput: the file is not such a file.
        UnknownName: no such protocol, set or entry.
    """
    return jobs_from("rerank", recipes, Settings, sets=SOURCES, protocol=protocol, seeds=seeds)


def rerank_run(job: Job, *, root: Path | None = None) -> Outcome:
    """Rank instances or classes that nothing was learned from, by the method that a job says.

    Raises:
        BadInput: the data are not here, or cannot be used.
        MissingExtra: Pillow is not installed.
        UnknownName: no such method.
    """
    settings = settings_from(Settings, job.key, job.recipe)
    if settings.method not in (NETWORK, *RANKERS):
        raise unknown(job.key, "method", settings.method, (NETWORK, *RANKERS))
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    train, valid, test = SOURCES[job.data](settings, job.seed, device, root)
    if settings.method != NETWORK:
        own = torch.arange(len(test[0]), device=device)
        started = time.perf_counter()
        ranking = ranked(settings.method, test[0], test[0], settings.k, own=own)
        return Outcome({**_figures(ranking, test[1]), "rank_seconds": time.perf_counter() - started})
    with seeded(job.seed):
        model = settings.model().to(device)
    sides: dict[str, Any] = {name: getattr(settings, name) for name in ("sides", "neighbours", "alpha")}
    lists = lists_of(*train, settings.k, **sides)
    loss = list_loss(
        lists.points,
        temperature=settings.temperature,
        reconstruction=settings.reconstruction,
        thinning=settings.thinning,
        jitter=settings.jitter,
    )

    def looked(part: Labelled) -> dict[str, float]:
        own = torch.arange(len(part[0]), device=device)
        k = settings.longer or settings.k
        return _figures(rerank(model, part[0], part[0], k, own=own, **sides), part[1])

    fitted = fit_reranker(
        model,
        lists,
        course_of(settings, job.seed, device),
        loss=loss,
        watch=lambda net: looked(valid)["test_map"],
        every=settings.every,
    )
    started = time.perf_counter()
    figures = looked(test)
    figures |= {
        "valid_map": max(fitted.watched),
        "fit_seconds": fitted.seconds,
        "rank_seconds": time.perf_counter() - started,
    }
    return Outcome(figures, sum(each.numel() for each in model.parameters()))


def _figures(ranking: Ranking, labels: Tensor) -> dict[str, float]:
    order, labels = ranking.order.cpu(), labels.cpu()
    relevant = labels[:, None] == labels
    relevant.fill_diagonal_(False)
    return {
        "test_map": mean_average_precision(order, relevant),
        "test_precision_10": precision_at(order, relevant, 10),
    }


RERANK_PAGE = Page(
    title="Re-ranking of lists",
    about=(
        "Mean average precision in %, mean ± deviation over seeds, every item of the test part a query among "
        "the others. Instances of curves that are tested were not learned from. Features of images come from "
        "a small network that knows half of the classes, re-rankers learn from further images of these, and "
        "the other half is tested on. Re-rankers re-order the first items of a list, the others rank all."
    ),
    figures={"clean": "test_map"},
    labels={
        "clean": "A part of what is learned from, or further instances of its kind, chooses the weights."
    },
    variants={
        "first": "first round",
        "alpha-QE": "alpha query expansion",
        "alpha-QE both": "the same on both sides",
        "k-reciprocal": "k-reciprocal",
        "affinity": "affinity cosine",
        "csa": "network as published",
        "ours": "network after expansion of both sides",
        "ours-longer": "the same, longer lists after training",
        "primal": "network after expansion, primal attention",
    },
    claims=(
        Claim("The published network beats the first round", "csa", "first"),
        Claim("The published network beats alpha query expansion", "csa", "alpha-QE"),
        Claim("A network after expansion beats alpha query expansion", "ours", "alpha-QE"),
        Claim("A network after expansion beats expansion of both sides alone", "ours", "alpha-QE both"),
        Claim("A network after expansion beats k-reciprocal neighbours", "ours", "k-reciprocal"),
        Claim("Lists that are longer than in training are ranked better", "ours-longer", "ours"),
        Claim("Primal attention is as good as softmax attention", "primal", "ours"),
    ),
    beside={
        "test_precision_10": "precision at 10",
        "fit_seconds": "seconds of training",
        "rank_seconds": "seconds of ranking",
    },
    scale=100.0,
    unit=" %",
)
