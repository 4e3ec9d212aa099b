"""A re-ranker of lists with scikit-learn's interface: fit on labelled features, rerank, save and load."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator
from sklearn.utils import Tags, check_array
from sklearn.utils.validation import check_is_fitted, validate_data

from kernelhead.errors import CheckpointError, KernelheadError
from kernelhead.estimators.seeds import as_seed
from kernelhead.models import RerankerModel, rerank
from kernelhead.rng import seeded
from kernelhead.shapes import check_size
from kernelhead.training import Course, fit_reranker, list_loss, lists_of
from kernelhead.training.store import load_model, load_tensors, save_tensors

LOSSES = "losses"


class Reranker(BaseEstimator):  # type: ignore[misc]
    """Learn to re-order lists of neighbours in their own context, on classes that need not come back later.

    Features move towards their neighbours first, as in alpha query expansion; an encoder then sees a query
    and its first `k` items by their affinity to the best of them. For what was published take
    ``sides="none"``. The same `random_state` gives the same scores.

    Args:
        attention: of all layers, such as "softmax" or "primal", whose time grows as `k`.
        k: items of a list.
        anchors: coordinates of an affinity feature, the query and the best items.
        sides: whose features move first: "both", "query" or "none".
        neighbours: how many they move towards.
        alpha: power of the similarity in that.
        width: of the encoder.
        depth: number of layers.
        heads: of each attention.
        rank: of primal layers.
        landmarks: of primal layers.
        dropout: in training.
        temperature: of the contrastive loss.
        reconstruction: weight of the other loss.
        thinning: share of candidates that are taken out of a list in training.
        steps: of training.
        batch: lists of a step; all where there are fewer.
        lr: learning rate.
        device: where it is trained.
        random_state: seed; None stands for 0.

    Attributes:
        model_: the trained `RerankerModel`, on the CPU.
        losses_: of every step.

    Example:
        >>> from kernelhead.data import instance_curves
        >>> drawn = instance_curves(8, views=6, width=16, seed=0)
        >>> model = Reranker(k=12, anchors=12, width=8, heads=2, steps=2).fit(drawn.x, drawn.labels)
        >>> new = instance_curves(4, views=6, width=16, seed=1)
        >>> order, scores = model.rerank(new.x[0], new.x[1:], k=10)
        >>> order.shape, scores.shape
        ((1, 23), (1, 23))
    """

    def __init__(
        self,
        attention: str = "softmax",
        *,
        k: int = 64,
        anchors: int = 64,
        sides: str = "both",
        neighbours: int = 10,
        alpha: float = 3.0,
        width: int = 64,
        depth: int = 2,
        heads: int = 4,
        rank: int = 16,
        landmarks: int = 32,
        dropout: float = 0.0,
        temperature: float = 2.0,
        reconstruction: float = 0.2,
        thinning: float = 0.0,
        steps: int = 300,
        batch: int = 64,
        lr: float = 1e-3,
        device: str = "cpu",
        random_state: int | np.random.RandomState | None = None,
    ) -> None:
        self.attention = attention
        self.k = k
        self.anchors = anchors
        self.sides = sides
        self.neighbours = neighbours
        self.alpha = alpha
        self.width = width
        self.depth = depth
        self.heads = heads
        self.rank = rank
        self.landmarks = landmarks
        self.dropout = dropout
        self.temperature = temperature
        self.reconstruction = reconstruction
        self.thinning = thinning
        self.steps = steps
        self.batch = batch
        self.lr = lr
        self.device = device
        self.random_state = random_state

    def __sklearn_tags__(self) -> Tags:
        """Labels are needed."""
        tags = super().__sklearn_tags__()
        tags.target_tags.required = True
        return tags

    def fit(self, X: Any, y: Any) -> "Reranker":  # noqa: N803  scikit-learn's names
        """Learn from the lists of all items that share their label with another one.

        Args:
            X: features (items, features).
            y: labels, equal where items belong together.

        Raises:
            BadInput: no two items have the same label, or an option is out of range.
        """
        X, y = validate_data(self, X, y, dtype=np.float32, ensure_min_samples=2)  # noqa: N806
        points = torch.from_numpy(np.ascontiguousarray(X)).to(self.device)
        labels = torch.from_numpy(np.unique(y, return_inverse=True)[1].reshape(-1)).to(self.device)
        seed = as_seed(self.random_state)
        lists = lists_of(points, labels, self.k, **self._moves())
        with seeded(seed):
            model = self._model().to(self.device)
        batch = min(self.batch, len(lists.items))
        course = Course(self.steps, batch, lr=self.lr, warmup=0.2, weight_decay=1e-6, clip=None, seed=seed)
        loss = list_loss(
            lists.points,
            temperature=self.temperature,
            reconstruction=self.reconstruction,
            thinning=self.thinning,
        )
        self.losses_ = fit_reranker(model, lists, course, loss=loss).losses
        self.model_ = model.cpu().eval()
        return self

    def rerank(
        self, query: Any, database: Any, k: int | None = None, *, own: Any = None
    ) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """Rank a database for every query; the first `k` by the model, the others as they were.

        Args:
            query: features (queries, features), or of a single query (features,). They need not be in the
                database.
            database: features (items, features); of any width, the same as the queries'.
            k: items of a list, that of the fit by default; all where the database has fewer.
            own: where the queries are in the database, for queries that are; each is then left out of its own
                ranking. Otherwise one that is in it ranks as any item does.

        Returns:
            Places in the database, best first, (queries, items), and their scores: the model's for the first
            `k`, cosines of features for the others.

        Raises:
            ShapeError: query and database are of different widths.
            BadInput: `k` is below one, or `own` is no place of the database.
        """
        check_is_fitted(self)
        query = np.asarray(query)
        points, items = (
            torch.from_numpy(np.ascontiguousarray(check_array(side, dtype=np.float32)))
            for side in (query[None] if query.ndim == 1 else query, database)
        )
        places = None if own is None else torch.as_tensor(_whole(own))
        found = rerank(self.model_, points, items, self.k if k is None else k, own=places, **self._moves())
        return found.order.numpy(), found.scores.numpy()

    def save(self, path: Path) -> None:
        """Write what was learned to a safetensors file, with the options beside it; nothing is pickled.

        Raises:
            CheckpointError: the file cannot be written.
            MissingExtra: safetensors is not installed.
        """
        check_is_fitted(self)
        options = {**self.get_params(), "random_state": as_seed(self.random_state)}
        facts = {"reranker": options, "features": self.n_features_in_}
        save_tensors(Path(path), {**self.model_.state_dict(), LOSSES: torch.tensor(self.losses_)}, facts)

    @classmethod
    def load(cls, path: Path) -> "Reranker":
        """What `save` wrote, as it was fitted.

        Raises:
            CheckpointError: the file is missing, cut short, or no re-ranker's.
            MissingExtra: safetensors is not installed.
        """
        path = Path(path)
        tensors, facts = load_tensors(path)
        try:
            made = cls(**facts["reranker"])
            made.n_features_in_, made.losses_ = int(facts["features"]), tensors.pop(LOSSES).tolist()
            layers = check_size("Reranker", "depth", made.depth)
        except (KeyError, TypeError, ValueError, OverflowError, KernelheadError) as error:
            raise CheckpointError(f"{path} holds no re-ranker: {error}") from error
        made.model_ = load_model(path, made._model, tensors, layers=layers)
        return made

    def _model(self) -> RerankerModel:
        return RerankerModel(
            self.anchors,
            width=self.width,
            depth=self.depth,
            heads=self.heads,
            attention=self.attention,
            rank=self.rank,
            landmarks=self.landmarks,
            dropout=self.dropout,
        )

    def _moves(self) -> dict[str, Any]:
        return {"sides": self.sides, "neighbours": self.neighbours, "alpha": self.alpha}


def _whole(places: Any) -> NDArray[Any]:
    """Places in one row, whole numbers of any size as those of 64 bits."""
    found = np.atleast_1d(places)
    return found.astype(np.int64) if found.dtype.kind in "iu" else found
