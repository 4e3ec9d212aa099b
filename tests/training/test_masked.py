"""Masked entries: what is hidden, where the loss is, that its means are right, words."""

from math import isclose

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from kernelhead.errors import BadInput, ShapeError
from kernelhead.models import TableModel
from kernelhead.rng import seeded
from kernelhead.training import (
    Course,
    MaskedEntries,
    Masking,
    annealed,
    fit_resident,
    mask_entries,
    masked_loss,
)
from kernelhead.training.masked import entry_losses
from tests.inputs import keep, points

WIDTHS, KINDS, TARGET = [1, 3, 1, 2], [False, True, False, True], 2


def made(seed: int = 0) -> TableModel:
    with seeded(seed):
        return TableModel(WIDTHS, categorical=KINDS, width=4, depth=2, heads=2).double()


def table(count: int, *, batch: int = 1, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Encoded columns, and about a fifth of the entries missing."""
    parts = []
    for place, (width, kind) in enumerate(zip(WIDTHS, KINDS, strict=True)):
        part = points(batch, count, width, seed=seed + place)
        parts.append((part == part.amax(-1, keepdim=True)).double() if kind else part)
    missing = points(batch, count, 4, seed=seed + 9) > 0.84
    values = torch.cat(parts, dim=-1)
    return values.masked_fill(missing.repeat_interleave(torch.tensor(WIDTHS), dim=-1), 0), missing


@given(
    seed=st.integers(0, 99),
    features=st.sampled_from([0.0, 0.3, 1.0]),
    targets=st.sampled_from([0.0, 0.5, 1.0]),
)
def test_what_is_hidden_and_what_is_seen(seed: int, features: float, targets: float) -> None:
    model, (values, missing) = made(), table(20, batch=2, seed=seed)
    train, real = points(2, 20, seed=seed) > -0.5, keep([20, 15], 20)
    with seeded(seed):
        masked = mask_entries(
            model,
            values,
            missing,
            TARGET,
            masking=Masking(features, targets, 0.5),
            train_rows=train,
            row_mask=real,
        )
    owned = model.owner
    known = ~missing & real[..., None]
    # Nothing that is missing is ever chosen or shown.
    assert not bool((masked.chosen & ~known).any())
    assert bool(masked.missing[~known].all())
    # Hidden entries are zero, and untouched ones are as they were.
    assert bool((masked.values[masked.missing[..., owned]] == 0).all())
    untouched = (~masked.missing & ~masked.chosen)[..., owned]
    assert torch.equal(masked.values[untouched], values[untouched])
    # Of targets: training rows show those that were not chosen, other rows none; none is replaced.
    shown = ~masked.missing[..., TARGET]
    assert torch.equal(shown, known[..., TARGET] & train & ~masked.chosen[..., TARGET])
    # Features are hidden only where they were chosen.
    others = [0, 1, 3]
    assert not bool((masked.missing & known & ~masked.chosen)[..., others].any())
    if features == 1:
        assert bool(masked.chosen[..., others][known[..., others]].all())
    if features == 0:
        assert not bool(masked.chosen[..., others].any())


def test_replaced_entries_pass_for_known_and_are_levels_or_numbers() -> None:
    model, (values, missing) = made(), table(400)
    with seeded(0):
        masked = mask_entries(model, values, missing, TARGET, masking=Masking(1.0, 0.0, 1.0))
    level = masked.values[..., 1:4][~missing[..., 1]]
    assert bool((level.sum(-1) == 1).all())
    assert bool(((level == 0) | (level == 1)).all())
    assert level.mean(0).tolist() == pytest.approx([1 / 3] * 3, abs=0.1)
    number = masked.values[..., 0][~missing[..., 0]]
    assert float(number.std()) == pytest.approx(1, abs=0.15)
    assert torch.equal(masked.missing, missing)


def test_shares_are_as_asked() -> None:
    model, (values, missing) = made(), table(4000)
    with seeded(1):
        masked = mask_entries(model, values, missing, TARGET, masking=Masking(0.15, 0.5, 0.1))
    features, known = [0, 1, 3], ~missing
    chosen = masked.chosen[..., features][known[..., features]].double().mean()
    assert float(chosen) == pytest.approx(0.15, abs=0.02)
    target = masked.chosen[..., TARGET][known[..., TARGET]].double().mean()
    assert float(target) == pytest.approx(0.5, abs=0.03)
    replaced = (masked.chosen & ~masked.missing)[..., features].sum() / masked.chosen[..., features].sum()
    assert float(replaced) == pytest.approx(0.1, abs=0.03)


@torch.no_grad()
@pytest.mark.parametrize("tradeoff", [0.0, 0.3, 1.0])
def test_the_loss_is_two_means_over_chosen_entries(tradeoff: float) -> None:
    model, (values, missing) = made(), table(12, batch=2)
    masking, train = Masking(0.4, 0.6), points(2, 12) > -1
    with seeded(5):
        found = masked_loss(
            model, values, missing, TARGET, masking=masking, tradeoff=tradeoff, train_rows=train
        )
    with seeded(5):
        masked = mask_entries(model, values, missing, TARGET, masking=masking, train_rows=train)
    predictions = model(masked.values, masked.missing)
    groups: dict[bool, list[float]] = {True: [], False: []}
    for column, (prediction, truth) in enumerate(zip(predictions, values.split(WIDTHS, -1), strict=True)):
        for place in masked.chosen[..., column].nonzero().tolist():
            made_of, wanted = prediction[tuple(place)], truth[tuple(place)]
            if KINDS[column]:
                loss = -float(made_of.log_softmax(0)[int(wanted.argmax())])
            else:
                loss = float((made_of - wanted) ** 2)
            groups[column == TARGET].append(loss)
    means = {kind: sum(losses) / len(losses) for kind, losses in groups.items()}
    assert isclose(float(found), (1 - tradeoff) * means[True] + tradeoff * means[False], rel_tol=1e-10)


@torch.no_grad()
def test_nothing_chosen_is_no_loss() -> None:
    model, (values, missing) = made(), table(6)
    for masking in (Masking(0.0, 0.0), Masking(0.5, 0.5)):
        nobody = torch.ones_like(missing)
        loss = masked_loss(model, values, nobody, TARGET, masking=masking, tradeoff=0.5)
        assert float(loss) == 0


@torch.no_grad()
def test_missing_targets_and_rows_that_do_not_exist_take_no_part() -> None:
    model, (values, missing) = made(), table(8)
    real = keep([6], 8)
    found = []
    for garbage in (0.0, float("nan")):
        spoilt = values.masked_fill(missing[..., model.owner] | ~real[..., None], garbage)
        spoilt = torch.where(real[..., None], spoilt, 0.0) if garbage != garbage else spoilt
        with seeded(2):
            loss = masked_loss(
                model, spoilt, missing, TARGET, masking=Masking(0.3), tradeoff=0.5, row_mask=real
            )
        found.append(float(loss))
    assert found[0] == found[1]


def test_annealed_goes_from_one_to_zero() -> None:
    steps = torch.arange(11.0)
    curve = annealed(steps, 10)
    assert curve.tolist() == pytest.approx([annealed(step, 10) for step in range(11)], abs=1e-6)
    assert bool((curve.diff() < 0).all())
    assert annealed(99, 10) == 0
    with pytest.raises(BadInput, match="annealed: steps is 0"):
        annealed(1, 0)


def test_the_loss_of_a_course_counts_its_calls() -> None:
    model = made().float()
    (values, missing), loss = table(30), MaskedEntries(TARGET, steps=8)
    before = [weight.detach().clone() for weight in model.parameters()]
    inputs = values[0].float(), missing[0]
    fit_resident(model, inputs, torch.ones(30, dtype=torch.bool), Course(8, 10), loss=loss)
    assert float(loss.made) == 8
    assert not all(map(torch.equal, before, model.parameters()))


def test_rows_as_cases_are_one_table() -> None:
    model, (values, missing) = made(), table(6)
    train = keep([4], 6)
    kept = MaskedEntries(TARGET, steps=None, tradeoff=0.25)
    with seeded(3):
        rows = kept(model, (values[0], missing[0]), train[0])
    with seeded(3):
        whole = kept(model, (values, missing), train)
    assert torch.equal(rows, whole)
    assert float(kept.made) == 0


def test_a_masked_column_is_learned() -> None:
    # The target is the first column: the model finds it from half of the targets and all features.
    with seeded(0):
        model = TableModel([1, 1], categorical=[False, False], width=8, depth=2, heads=2)
        x = torch.randn(64, 1)
        loss = MaskedEntries(1, steps=150, masking=Masking(0.1))
    rows, shown = x.repeat(1, 2), torch.zeros(64, 2, dtype=torch.bool)
    fit_resident(model, (rows, shown), ~shown[:, 0], Course(150, 32, lr=3e-3), loss=loss)
    hidden = torch.tensor([False, True]).expand(1, 64, 2)
    with torch.no_grad():
        error = (model(rows[None], hidden)[1] - x).square().mean()
    assert float(error) < 0.2


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")  # of the compiler
@pytest.mark.gpu
@pytest.mark.parametrize("compiled", [False, True], ids=["plain", "compiled"])
def test_a_course_on_the_gpu_counts_in_its_graph(compiled: bool) -> None:
    model, (values, missing) = made().float().cuda(), table(30)
    inputs, loss = (values[0].float().cuda(), missing[0].cuda()), MaskedEntries(TARGET, steps=12)
    train = torch.ones(30, dtype=torch.bool, device="cuda")
    fitted = fit_resident(model, inputs, train, Course(12, 10), loss=loss, compiled=compiled)
    assert float(loss.made) == 12
    assert fitted.steps == 12
    assert len({*fitted.losses}) == 12


def test_what_is_wrong_is_named() -> None:
    model, (values, missing) = made(), table(4)
    with pytest.raises(BadInput, match=r"Masking: features is 1\.5, expected from 0 to 1"):
        Masking(features=1.5)
    with pytest.raises(BadInput, match="mask_entries: target is 4, expected a column from 0 to 3"):
        mask_entries(model, values, missing, 4, masking=Masking())
    with pytest.raises(ShapeError, match="mask_entries: `train_rows` has shape"):
        mask_entries(model, values, missing, 0, masking=Masking(), train_rows=keep([2], 3))
    with pytest.raises(BadInput, match="MaskedEntries: steps is 0"):
        MaskedEntries(0, steps=0)
    with pytest.raises(BadInput, match="MaskedEntries: the model is a Linear, expected a TableModel"):
        MaskedEntries(0, steps=1)(nn.Linear(1, 1), (values, missing), keep([4], 4))
    assert entry_losses(torch.zeros(2, 2), torch.eye(2), categorical=True).tolist() == pytest.approx(
        [0.6931] * 2, abs=1e-4
    )
