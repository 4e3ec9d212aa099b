"""Tables: attention between rows against boosted trees, forests and neighbours on the same splits."""

from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from kernelhead.data import Cells, Table, TableEncoder, read_table
from kernelhead.data.table_sets import SETS
from kernelhead.errors import unknown
from kernelhead.inspection import calibration_error, negative_log_likelihood
from kernelhead.training.grid import Job, Outcome
from kernelhead.training.settings import jobs_from, settings_from
from kernelhead.training.table import Claim, Goal, Page
from kernelhead.training.tables import FittedTable, TableSettings, fit_table

FIELD = "tables"
PROTOCOLS = ("clean", "transductive")
SPLITS = {"protein-tertiary-structure": 5}  # where there are fewer than twenty
DRAWS = 5  # of a corrupted context
MODELS = {
    "softmax": "rows by softmax",
    "self": "the same, rows see themselves",
    "published": "as released",
    "inducing": "rows by inducing rows",
    "primal": "rows by primal attention",
}
PEERS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "HistGradientBoosting": ("ensemble", "HistGradientBoosting", {}),
    "RandomForest": ("ensemble", "RandomForest", {"n_estimators": 100}),
    "k-NN": ("neighbors", "KNeighbors", {"n_neighbors": 5}),
}


def table_jobs(recipes: Path, *, protocol: str, seeds: int, root: Path | None = None) -> list[Job]:
    """The jobs of every set and variant in a recipe file, and under `clean` of the peers; a seed is a split.

    Args:
        recipes: TOML file; entries before the first table hold for all, those of [SET] for a set, and
            [SET.VARIANT] adds what a variant has of its own.
        protocol: "clean": rows that are tested see training rows and themselves, and are unknown in
            training; "transductive": their features are part of the table in training, and they see
            each other.
        seeds: how many splits, from 0 on; at most as many as a set has.
        root: folder of data sets; unused here, the data are read when a job runs.

    Raises:
        BadInput: the file is not such a file.
        UnknownName: no such protocol, set or entry.
    """
    if protocol not in PROTOCOLS:
        raise unknown(FIELD, "protocol", protocol, PROTOCOLS)
    jobs = jobs_from(FIELD, recipes, TableSettings, sets=SETS, protocol="clean", seeds=seeds)
    if protocol == "transductive":
        jobs = [
            replace(job, protocol=protocol, recipe={**job.recipe, "evaluation": protocol}) for job in jobs
        ]
    else:
        jobs += [
            Job(FIELD, data, name, protocol, seed, arguments)
            for data in dict.fromkeys(job.data for job in jobs)
            for name, (_, _, arguments) in PEERS.items()
            for seed in range(seeds)
        ]
    return [job for job in jobs if job.seed < SPLITS.get(job.data, seeds)]


def table_run(job: Job, *, root: Path | None = None) -> Outcome:
    """Train and score what a job says on the split of its seed.

    Raises:
        BadInput: the data are not here, or cannot be used.
    """
    parts = _Parts.read(job, root)
    if job.variant in PEERS:
        return Outcome(parts.judged(_peer(job, parts)))
    settings = settings_from(TableSettings, job.key, job.recipe)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    later = parts.tested if settings.evaluation == "transductive" else None
    fitted = fit_table(parts.trained, settings, seed=job.seed, device=device, unlabelled=later)
    figures = {**parts.judged(parts.predicted(fitted, device)), "temperature": fitted.temperature}
    corrupted = [
        parts.judged(parts.predicted(fitted.corrupted(draw), device))["test_error"] for draw in range(DRAWS)
    ]
    figures["corrupted_error"] = float(np.mean(corrupted))
    if fitted.fitted is not None:
        figures |= {
            "steps": float(fitted.fitted.steps),
            "steps_a_second": fitted.fitted.steps_a_second,
            "peak_gib": fitted.fitted.peak_gib,
        }
    return Outcome(figures, sum(each.numel() for each in fitted.model.parameters()))


@dataclass(frozen=True, eq=False)
class _Parts:
    """Both parts of a split, as cells and as tables with the training part's encoding."""

    train: Cells
    test: Cells
    encoder: TableEncoder
    trained: Table
    tested: Table

    @classmethod
    def read(cls, job: Job, root: Path | None) -> "_Parts":
        train, test = (
            read_table(job.data, part=part, split=job.seed, root=root) for part in ("train", "test")
        )
        encoder = TableEncoder.fit(train.x, train.y, classification=train.classification)
        tables = (encoder.transform(part.x, part.y) for part in (train, test))
        return cls(train, test, encoder, *tables)

    @property
    def labels(self) -> NDArray[np.int64]:
        """Places of the true classes of the test part."""
        return self.tested.entries(self.tested.schema.target).argmax(1)

    def predicted(self, fitted: FittedTable, device: torch.device) -> NDArray[np.float64]:
        """Scores of classes (r, classes), or numbers (r,)."""
        scores = fitted.scores(self.tested, device=device, dtype=torch.float32)
        return scores if self.train.classification else self.encoder.restored(scores[:, 0])

    def judged(self, predicted: NDArray[np.float64]) -> dict[str, float]:
        """Figures of predictions; `test_error` is one of all sets, in %."""
        if not self.train.classification:
            rmse = float(np.sqrt(np.mean((predicted - self.test.y) ** 2)))
            return {"test_error": 100 * rmse / float(self.train.y.std()), "test_rmse": rmse}
        wrong = float(np.mean(predicted.argmax(1) != self.labels))
        scores, y = torch.from_numpy(predicted), torch.from_numpy(self.labels)
        return {
            "test_error": 100 * wrong,
            "test_accuracy": 1 - wrong,
            "test_log_loss": negative_log_likelihood(scores, y),
            "calibration_error": calibration_error(scores, y),
        }


def _peer(job: Job, parts: _Parts) -> NDArray[np.float64]:
    """An estimator of scikit-learn with its own defaults, which learns from all training rows.

    Trees get numbers as they are, places of levels and NaN for missing cells; neighbours get what the
    networks get.
    """
    room, name, _ = PEERS[job.variant]
    kind = getattr(
        import_module(f"sklearn.{room}"),
        f"{name}{'Classifier' if parts.train.classification else 'Regressor'}",
    )
    arguments, target = dict(job.recipe), parts.trained.schema.target
    if room == "ensemble":
        arguments["random_state"] = job.seed
        x, new = (parts.encoder.ordinal(part.x) for part in (parts.train, parts.test))
    else:
        start = parts.trained.schema.starts[target]
        x, new = (table.values[:, :start].astype(np.float64) for table in (parts.trained, parts.tested))
    if name == "RandomForest":
        arguments["n_jobs"] = torch.get_num_threads()
    if name == "HistGradientBoosting":
        arguments["categorical_features"] = [*parts.trained.schema.categorical[:target]]
    if not parts.train.classification:
        return np.asarray(kind(**arguments).fit(x, parts.train.y).predict(new))
    y = parts.trained.entries(target).argmax(1)
    shares = np.full((len(new), parts.trained.schema.widths[target]), 1e-9)
    model = kind(**arguments).fit(x, y)
    shares[:, model.classes_] = np.maximum(model.predict_proba(new), 1e-9)
    return np.log(shares)


TABLES_PAGE = Page(
    title="Tables",
    about=(
        "Error on the test part in %, lower is better, mean ± deviation over splits, with their number. For "
        "numbers it is the root mean squared error as a share of the deviation of the training targets, for "
        "classes (adult, poker_hand, breast_cancer) the share of wrong ones. Regression sets have their "
        "published splits, adult its own test part, and of the other two a fifth of every class is tested. "
        "The peers of scikit-learn have their own defaults and learn from all training rows; the networks "
        "hold a tenth of them out, which chooses the step and the temperature of probabilities."
    ),
    figures=dict.fromkeys(PROTOCOLS, "test_error"),
    labels={
        "clean": "Inductive: rows that are tested see training rows and themselves, and are unknown in "
        "training. *Corrupted* is the error where every column of the training rows that a prediction sees "
        "was shuffled on its own: how much worse it is says how much predictions rely on other rows.",
        "transductive": "Features of the rows that are tested are part of the table in training, and these "
        "rows see each other, as in the published experiments.",
    },
    variants={**MODELS, **{name: name for name in PEERS}},
    goals=tuple(Goal("softmax", peer) for peer in PEERS),
    claims=(
        Claim("Seeing other rows helps", "softmax", "self"),
        Claim("A norm on keys and values too is better than on queries only", "softmax", "published"),
        Claim("Softmax between rows is better than inducing rows", "softmax", "inducing"),
        Claim("Better than boosted trees", "softmax", "HistGradientBoosting"),
    ),
    beside={
        "test_rmse": "RMSE",
        "test_accuracy": "accuracy",
        "test_log_loss": "log-loss",
        "calibration_error": "calibration error",
        "corrupted_error": "corrupted, %",
        "steps_a_second": "steps/s",
    },
    higher=False,
)
