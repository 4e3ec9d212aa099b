"""A table model fitted to a table, with the rows that its predictions see and a temperature."""

from copy import deepcopy
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from kernelhead.data import Table
from kernelhead.data.sources import in_part
from kernelhead.errors import BadInput, unknown
from kernelhead.models import TableModel, ring_anchors
from kernelhead.nn import evaluating
from kernelhead.rng import generator, seeded
from kernelhead.shapes import check_size
from kernelhead.training.course import Course
from kernelhead.training.masked import MaskedEntries, Masking
from kernelhead.training.resident import fit_resident
from kernelhead.training.steps import Fitted
from kernelhead.training.transport_maps import RADIUS, pretrain_head

EVALUATIONS = ("inductive", "transductive")
HEADS = ("learned", "dummies")
FEWEST = 10  # known targets from which on some are held out
STEPS_A_ROW, LEAST_STEPS, MOST_STEPS = 4, 100, 2000
LOOKS, FEWEST_STEPS = 50, 5  # at the rows held out, and between two of them
PART = 2048  # rows that are predicted at a time
TEMPERATURES = np.geomspace(0.1, 10.0, 401)


@dataclass(frozen=True)
class TableSettings:
    """All that a table model is made and trained from; see `TableModel` and `Course` for the words.

    Args:
        batch: rows of a step; a table that has no more is one step's table as a whole.
        steps: of the optimiser; 0 for four for each row, from 100 to 2,000.
        features: chance of a feature to be hidden in a step; where it is above 0, the loss goes from
            hidden features to hidden targets in the course of training.
        targets: chance of a target to be hidden in a step; the others are visible.
        validation: share of the rows that choose the step and the temperature; 0 for none.
        every: steps from one look at them to the next; 0 for fifty looks, five steps apart at least.
        patience: looks without a better one after which training ends; 0 to go on.
        context: most training rows that a prediction sees, drawn by the seed where there are more; 0 for all.
        evaluation: "inductive": predicted rows see training rows and themselves; "transductive": they see
            each other too, and those known in training are part of the table there.
        head: of the target, "learned", or for classes "dummies": taught to tell dummy classes on a ring
            apart, then frozen.
        radius: of that ring, in deviations of a dummy class; 0 for three times the number of classes.
        compiled: whether the loss is compiled on a GPU.

    Raises:
        BadInput: a number is out of range.
        UnknownName: no such evaluation or head.
    """

    attention: str = "softmax"
    preset: str = "norm_all"
    width: int = 16
    depth: int = 4
    heads: int = 4
    rank: int = 16
    inducing: int = 32
    dropout: float = 0.1
    batch: int = 1024
    steps: int = 0
    lr: float = 1e-3
    schedule: str = "cosine"
    warmup: float = 0.05
    weight_decay: float = 0.01
    clip: float = 1.0
    precision: str = "32"
    features: float = 0.0
    targets: float = 0.5
    validation: float = 0.1
    every: int = 0
    patience: int = 0
    context: int = 4096
    evaluation: str = "inductive"
    head: str = "learned"
    radius: float = 0.0
    compiled: bool = False

    def __post_init__(self) -> None:
        for name in ("steps", "every", "patience", "context"):
            check_size("TableSettings", name, getattr(self, name), least=0)
        check_size("TableSettings", "batch", self.batch)
        for name in ("validation", "dropout"):
            if not 0 <= getattr(self, name) < 1:
                raise BadInput(
                    f"TableSettings: {name} is {getattr(self, name)!r}, expected from 0 to below 1"
                )
        if self.evaluation not in EVALUATIONS:
            raise unknown("TableSettings", "evaluation", self.evaluation, EVALUATIONS)
        if self.head not in HEADS:
            raise unknown("TableSettings", "head", self.head, HEADS)
        if not self.radius >= 0:
            raise BadInput(f"TableSettings: radius is {self.radius!r}, expected 0 or more")
        Masking(self.features, self.targets)

    def steps_for(self, rows: int) -> int:
        """Steps of the optimiser for a table of so many rows.

        Example:
            >>> [TableSettings().steps_for(rows) for rows in (10, 300, 10_000)]
            [100, 1200, 2000]
        """
        return self.steps or min(max(STEPS_A_ROW * rows, LEAST_STEPS), MOST_STEPS)

    def model(self, table: Table) -> TableModel:
        """The model for a table's columns, with weights from the global generator."""
        return TableModel(
            table.schema.widths,
            categorical=table.schema.categorical,
            width=self.width,
            depth=self.depth,
            heads=self.heads,
            attention=self.attention,
            preset=self.preset,
            rank=self.rank,
            inducing=self.inducing,
            dropout=self.dropout,
        )


@dataclass(frozen=True, eq=False)
class FittedTable:
    """A trained table model with the rows that its predictions see.

    Args:
        model: on the CPU, in evaluation mode.
        context: training rows with their targets.
        temperature: by which scores of classes are divided; 1 for numbers.
        transductive: whether rows that are predicted together see each other.
        fitted: what training took; None without.
    """

    model: TableModel
    context: Table
    temperature: float = 1.0
    transductive: bool = False
    fitted: Fitted | None = None

    def scores(
        self, table: Table, *, device: torch.device | str = "cpu", dtype: torch.dtype = torch.float64
    ) -> NDArray[np.float64]:
        """What is predicted for the target of each row, whatever it holds: a number or scores of classes.

        In double precision, so that a row has the same answer in any company, but for rounding of 1e-13.
        Where rows see each other all are predicted at once.

        Shapes: returns (r, width of the target).

        Args:
            table: rows to predict, of the same columns.
            device: to predict on.
            dtype: of the computation.

        Raises:
            BadInput: the table has other columns, or there is no such device.
        """
        if table.schema != self.context.schema:
            raise BadInput("FittedTable: the table has other columns than those of training")
        device = _device("FittedTable", device)
        net = deepcopy(self.model).to(device, dtype)
        made = target_scores(net, self.context, table, device, transductive=self.transductive)
        return np.asarray(made.double().cpu().numpy()) / self.temperature

    def beside(self, table: Table) -> tuple[Tensor, Tensor]:
        """The context and behind it rows with their targets hidden, as one table for the model.

        With ``context=len(fitted.context)`` the model, `neighbours` and the other readings of rows take it.

        Shapes: returns values (context + r, sum of widths) and missing (context + r, a).

        Example:
            >>> from kernelhead.data import TableEncoder
            >>> table = TableEncoder.fit(np.eye(3), np.arange(3.0)).transform(np.eye(3), np.arange(3.0))
            >>> made = FittedTable(TableSettings().model(table), table)
            >>> [tuple(part.shape) for part in made.beside(table.take([0]))]
            [(4, 4), (4, 4)]
        """
        return _on(self.context.joined(_untold(table)), torch.device("cpu"))

    def corrupted(self, seed: int) -> "FittedTable":
        """The same with every column of the context shuffled on its own: rows that say nothing any more.

        How much worse predictions become is how much they rely on other rows.
        """
        order = np.random.Generator(np.random.Philox(seed))
        values, missing = self.context.values.copy(), self.context.missing.copy()
        for column, (first, last) in enumerate(
            zip(self.context.schema.starts[:-1], self.context.schema.starts[1:], strict=True)
        ):
            drawn = order.permutation(len(values))
            values[:, first:last], missing[:, column] = values[drawn, first:last], missing[drawn, column]
        return replace(self, context=Table(self.context.schema, values, missing))


def fit_table(
    table: Table,
    settings: TableSettings,
    *,
    seed: int = 0,
    device: torch.device | str = "cpu",
    unlabelled: Table | None = None,
) -> FittedTable:
    """Train a table model on rows with known targets, and keep those rows for its predictions.

    A part of the rows is held out: it chooses the step whose weights are kept, the mean squared error or the
    log-loss of its targets deciding, and the temperature of the classes. Predictions then see it beside the
    other rows. With fewer than ten known targets nothing is held out, and the last weights are taken. The
    same seed gives the same bits on the CPU.

    Args:
        table: training rows, targets included; rows without one teach features only.
        settings: of model and training.
        seed: of weights, order, masks, what is held out and which rows are seen.
        device: to train on.
        unlabelled: rows to predict later, part of the table where the evaluation is transductive.

    Raises:
        BadInput: no target is known, unlabelled rows with an inductive evaluation, a setting is wrong, a
            head of dummies for numbers, or there is no such device.

    Example:
        >>> from kernelhead.data import TableEncoder
        >>> x = np.linspace(-1, 1, 40)[:, None]
        >>> encoder = TableEncoder.fit(x, 2 * x[:, 0])
        >>> made = fit_table(encoder.transform(x, 2 * x[:, 0]), TableSettings(width=8, depth=2, heads=2))
        >>> made.scores(encoder.transform(x[:3])).shape
        (3, 1)
    """
    transductive, device = settings.evaluation == "transductive", _device("fit_table", device)
    if unlabelled is not None and not transductive:
        raise BadInput("fit_table: unlabelled rows are given, but the evaluation is inductive")
    target = table.schema.target
    known = ~table.missing[:, target]
    if not known.any():
        raise BadInput(f"fit_table: none of {len(table)} targets is known, expected at least one")
    held = _held_out(table, known, settings.validation, seed)
    part, valid = table.take(np.flatnonzero(~held)), table.take(np.flatnonzero(held))
    trained = part if unlabelled is None else part.joined(_untold(unlabelled))
    with seeded(seed):
        model = settings.model(table)
    if settings.head == "dummies":
        _freeze_head(model, table, settings, seed)
    model = model.to(device)
    course = _course(settings, len(trained), seed, device)
    loss = MaskedEntries(
        target,
        steps=course.steps if settings.features else None,
        masking=Masking(settings.features, settings.targets),
    )
    sight = _sample(part, settings.context, seed)
    truth = torch.from_numpy(valid.entries(target)).to(device)
    classes = table.schema.categorical[target]

    def held_out_scores() -> Tensor:
        return target_scores(model, sight, valid, device, transductive=transductive)

    every = settings.every or max(course.steps // LOOKS, FEWEST_STEPS)
    fitted = fit_resident(
        model,
        _on(trained, device),
        torch.ones(len(trained), dtype=torch.bool, device=device),
        course,
        loss=loss,
        compiled=settings.compiled and device.type == "cuda",
        watch=(lambda _: -_target_loss(held_out_scores(), truth, classes)) if len(valid) else None,
        every=every,
        patience=settings.patience or None if len(valid) else None,
    )
    temperature = 1.0
    if classes and len(valid):
        temperature = best_temperature(held_out_scores().double().cpu(), truth.cpu().argmax(-1))
    told = table.take(np.flatnonzero(known))
    return FittedTable(
        model.cpu().eval(), _sample(told, settings.context, seed), temperature, transductive, fitted
    )


@torch.no_grad()
def target_scores(
    model: TableModel, context: Table, table: Table, device: torch.device, *, transductive: bool = False
) -> Tensor:
    """What a model predicts for the hidden targets of a table's rows beside a context, (r, width).

    Args:
        model: on the device; in evaluation mode for the call.
        context: rows that all see.
        table: rows whose targets are predicted, hidden whatever they are.
        device: of the model.
        transductive: whether rows of the table see each other; all are then predicted at once.
    """
    target, dtype = table.schema.target, next(model.parameters()).dtype
    seen, found = _on(context, device), []
    asked = _untold(table)
    with evaluating(model):
        for first in range(0, len(asked), len(asked) if transductive else PART):
            rows = asked if transductive else asked.take(range(first, min(first + PART, len(asked))))
            values, missing = (torch.cat(pair)[None] for pair in zip(seen, _on(rows, device), strict=True))
            made = model(values.to(dtype), missing, context=None if transductive else len(context))
            found.append(made[target][0, len(context) :])
    return torch.cat(found)


def best_temperature(scores: Tensor, y: Tensor) -> float:
    """The number from 0.1 to 10 by which scores are divided for the smallest log-loss.

    Of n cases a label counts (n + 1) / (n + classes) and every other class 1 / (n + classes), so that few
    cases that are all right do not make for certainty.

    Shapes: scores (b, classes), y (b,).

    Args:
        scores: before the softmax.
        y: true classes.

    Example:
        >>> best_temperature(torch.tensor([[4.0, 0.0], [4.0, 0.0]]), torch.tensor([0, 1]))
        10.0
    """
    cases, classes = scores.shape
    smoothing = classes / (cases + classes)
    losses = [float(F.cross_entropy(scores / each, y, label_smoothing=smoothing)) for each in TEMPERATURES]
    return float(TEMPERATURES[int(np.argmin(losses))])


def _freeze_head(model: TableModel, table: Table, settings: TableSettings, seed: int) -> None:
    """Teach the head of the target dummy classes, and leave it at that."""
    target = table.schema.target
    if not table.schema.categorical[target]:
        raise BadInput("fit_table: head is 'dummies', which is for classes, but targets are numbers")
    classes = table.schema.widths[target]
    anchors = ring_anchors(classes, settings.width, radius=settings.radius or RADIUS * classes)
    pretrain_head(model.unembed[target], anchors, seed=seed)


def _device(who: str, device: torch.device | str) -> torch.device:
    device = torch.device(device)
    if device.type == "cuda" and not torch.cuda.is_available():
        raise BadInput(f"{who}: device is {str(device)!r}, but there is no CUDA device")
    return device


def _course(settings: TableSettings, rows: int, seed: int, device: torch.device) -> Course:
    return Course(
        settings.steps_for(rows),
        min(settings.batch, rows),
        lr=settings.lr,
        schedule=settings.schedule,
        warmup=settings.warmup,
        weight_decay=settings.weight_decay,
        clip=settings.clip or None,
        precision=settings.precision if device.type == "cuda" else "32",
        seed=seed,
    )


def _held_out(table: Table, known: NDArray[np.bool_], share: float, seed: int) -> NDArray[np.bool_]:
    """Rows that validate: a share of every class, or of all where targets are numbers."""
    held = np.zeros(len(table), bool)
    if share and known.sum() >= FEWEST:
        entries = table.entries(table.schema.target)[known]
        labels = (
            entries.argmax(1) if table.schema.categorical[table.schema.target] else np.zeros(len(entries))
        )
        held[known] = ~in_part("fit_table", labels.astype(np.int64), "train", validation=share, seed=seed)
    return held


def _sample(table: Table, most: int, seed: int) -> Table:
    """All rows, or so many of them, drawn by the seed and in their order."""
    if not most or len(table) <= most:
        return table
    drawn = torch.randperm(len(table), generator=generator(seed, most))[:most]
    return table.take(np.sort(drawn.numpy()))


def _untold(table: Table) -> Table:
    """The rows with their targets hidden."""
    missing = table.missing.copy()
    missing[:, table.schema.target] = True
    return replace(table, missing=missing)


def _on(table: Table, device: torch.device) -> tuple[Tensor, Tensor]:
    return torch.from_numpy(table.values).to(device), torch.from_numpy(table.missing).to(device)


def _target_loss(scores: Tensor, truth: Tensor, classes: bool) -> float:
    """Log-loss of classes, or mean squared error."""
    return float(F.cross_entropy(scores, truth) if classes else F.mse_loss(scores, truth))
