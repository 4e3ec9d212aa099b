"""fit: the same run from the same seed, the best epoch, resuming at any step, and its words."""

import os
import signal
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from kernelhead.data import Series, split
from kernelhead.errors import BadInput, CheckpointError, MissingExtra
from kernelhead.models import SequenceClassifier
from kernelhead.nn import PrimalAttention
from kernelhead.records import CHECKPOINT, METRICS, WEIGHTS, read_lines
from kernelhead.training import (
    Interrupted,
    Recipe,
    Watcher,
    accuracy_and_loss,
    build,
    fit,
    is_main,
    make_fabric,
    scores,
)
from kernelhead.training import loop as loop_module
from kernelhead.training.loop import PARTS, Row, targets
from kernelhead.training.store import load_tensors
from tests.training.tiny import recipe, series

CLASSES = ("0", "1")
WHOLE = series(24)
TRAIN, VALID = split(WHOLE, fraction=0.25, seed=0)
STEPS = 3  # 18 cases in batches of 8


def started(given: Recipe) -> SequenceClassifier:
    return build(given, classes=2, channels=2, longest=WHOLE.longest)


def trained(given: Recipe, **options: Any) -> tuple[SequenceClassifier, list[Row]]:
    model = started(given)
    rows = fit(model, TRAIN, VALID, CLASSES, given, fabric=make_fabric(given), **options)
    return model, rows


def same(left: dict[str, Tensor], right: dict[str, Tensor]) -> bool:
    return left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)


def figures(rows: list[Row]) -> list[Row]:
    """Rows without their time."""
    return [{name: value for name, value in row.items() if name != "seconds"} for row in rows]


@pytest.mark.parametrize("attention", ["primal", "primal+", "softmax", "performer"])
def test_the_same_seed_gives_the_same_bits(attention: str) -> None:
    given = recipe(attention=attention, dropout=0.2, depth=2, epochs=2)
    (one, first), (two, second) = trained(given), trained(given)
    assert same(one.state_dict(), two.state_dict())
    assert figures(first) == figures(second)


def test_another_seed_gives_other_weights() -> None:
    one, two = (trained(recipe(seed=seed, epochs=1))[0].state_dict() for seed in (0, 1))
    assert not same(one, two)


def test_the_seed_orders_the_cases_and_drops_points() -> None:
    with_dropout = [figures(trained(recipe(seed=seed, dropout=0.5))[1]) for seed in (0, 1)]
    assert with_dropout[0] != with_dropout[1]


def test_the_global_generator_stays_where_it_is() -> None:
    before = torch.get_rng_state()
    trained(recipe(dropout=0.3, epochs=1))
    assert torch.equal(torch.get_rng_state(), before)


def test_the_best_epoch_is_restored() -> None:
    model, rows = trained(recipe(epochs=8, lr=0.05, schedule="constant"))
    best = max(rows, key=lambda row: (row["valid_accuracy"], -row["valid_loss"]))
    assert best is not rows[-1]
    assert accuracy_and_loss(model, VALID, CLASSES) == (best["valid_accuracy"], best["valid_loss"])


def test_a_row_has_the_figures_of_an_epoch() -> None:
    rows = trained(recipe())[1]
    assert [row["epoch"] for row in rows] == [1, 2, 3]
    for row in rows:
        assert 0 <= row["train_accuracy"] <= 1
        assert 0 <= row["valid_accuracy"] <= 1
        assert row["seconds"] > 0
        assert row["penalty"] >= 0
        # A mean of squares is at least the square of the mean.
        left, right, trace = (row[name] for name in PARTS)
        assert (left + right - trace) ** 2 <= row["penalty"] * (1 + 1e-5)


def test_the_loss_of_an_epoch_is_a_mean_over_cases() -> None:
    given = recipe(epochs=1, lr=1e-12, decay=0.0, dropout=0.0)
    model, rows = trained(given)
    accuracy, loss = accuracy_and_loss(model, TRAIN, CLASSES)
    assert rows[0]["train_loss"] == pytest.approx(loss, rel=1e-5)
    assert rows[0]["train_accuracy"] == accuracy


def test_training_learns() -> None:
    rows = trained(recipe(epochs=25, lr=0.01, width=16, dropout=0.0))[1]
    assert rows[-1]["train_loss"] < 0.3 * rows[0]["train_loss"]
    assert rows[-1]["train_accuracy"] > 0.9


def roots(model: nn.Module) -> list[nn.Parameter]:
    return [module.root for module in model.modules() if isinstance(module, PrimalAttention)]


def test_without_penalty_values_are_frozen_and_no_moments_are_computed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("moments were computed")

    monkeypatch.setattr(loop_module, "record", refuse)
    monkeypatch.setattr("kernelhead.nn.primal.primal_attention_moments", refuse)
    given = recipe(penalty=0.0)
    before = [root.clone() for root in roots(started(given))]
    model, rows = trained(given)
    assert all(map(torch.equal, roots(model), before))
    assert not any(root.requires_grad for root in roots(model))
    assert all("penalty" not in row for row in rows)


@pytest.mark.parametrize("reduction", ["sample", "batch"])
def test_the_penalty_moves_the_values_and_falls(reduction: str) -> None:
    given = recipe(penalty=10.0, reduction=reduction, epochs=8, lr=0.01)
    before = [root.clone() for root in roots(started(given))]
    model, rows = trained(given)
    assert not any(map(torch.equal, roots(model), before))
    assert rows[-1]["penalty"] < rows[0]["penalty"]


def test_models_without_primal_layers_have_no_penalty() -> None:
    assert all("penalty" not in row for row in trained(recipe(attention="softmax", penalty=1.0))[1])


def kept_optimiser(monkeypatch: pytest.MonkeyPatch) -> list[torch.optim.Optimizer]:
    kept: list[torch.optim.Optimizer] = []
    build_optimiser: Callable[..., torch.optim.Optimizer] = loop_module._optimiser

    def keep(given: Recipe, model: nn.Module) -> torch.optim.Optimizer:
        kept.append(build_optimiser(given, model))
        return kept[0]

    monkeypatch.setattr(loop_module, "_optimiser", keep)
    return kept


@pytest.mark.parametrize("schedule", ["constant", "cosine"])
def test_the_learning_rate_follows_its_schedule(schedule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    kept, seen = kept_optimiser(monkeypatch), []
    watcher = Watcher(step=lambda done, total: seen.append(kept[0].param_groups[1]["lr"]))
    trained(recipe(schedule=schedule, lr=0.01), watcher=watcher)
    if schedule == "constant":
        assert seen == [0.01] * 9
    else:
        assert seen[0] == 0.01
        assert seen == sorted(seen, reverse=True)
        assert 0 < seen[-1] < 0.001


@pytest.mark.parametrize(("name", "kind"), [("adamw", torch.optim.AdamW), ("radam", torch.optim.RAdam)])
def test_the_optimiser_is_the_named_one(name: str, kind: type, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = kept_optimiser(monkeypatch)
    trained(recipe(optimiser=name, epochs=1))
    assert type(kept[0]) is kind


def test_decay_pulls_matrices_and_neither_values_nor_norms_nor_biases(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kept = kept_optimiser(monkeypatch)
    model, _ = trained(recipe(decay=0.3, epochs=1))
    decay = {id(p): group["weight_decay"] for group in kept[0].param_groups for p in group["params"]}
    found = {name: decay[id(weight)] for name, weight in model.named_parameters()}
    assert found["blocks.0.attention.query.weight"] == found["blocks.0.attention.left"] == 0.3
    assert found["blocks.0.attention.query.bias"] == found["final_norm.weight"] == 0.0
    assert found["blocks.0.attention.root"] == 0.0


def test_the_gradient_is_clipped() -> None:
    given = recipe(clip=1e-12, decay=0.0, epochs=1)
    before, after = started(given).state_dict(), trained(given)[0].state_dict()
    assert max((after[name] - before[name]).abs().max().item() for name in after) < 1e-6
    free = trained(replace(given, clip=0.0))[0].state_dict()
    assert max((free[name] - before[name]).abs().max().item() for name in free) > 1e-4


def test_the_watcher_is_told_of_every_step_and_epoch() -> None:
    seen, epochs = [], []
    watcher = Watcher(step=lambda done, total: seen.append((done, total)), epoch=epochs.append)
    _, rows = trained(recipe(), watcher=watcher)
    assert seen == [(done, 9) for done in range(1, 10)]
    assert epochs == rows


class Stopped(RuntimeError):
    """What a test stops a run with."""


def stop_at(step: int) -> Watcher:
    def look(done: int, total: int) -> None:
        if done == step:
            raise Stopped

    return Watcher(step=look)


@pytest.mark.parametrize("save_steps", [0, 1, 2])
@pytest.mark.parametrize("step", [1, 4, 5, 6, 8], ids="step{}".format)
def test_a_killed_run_goes_on_to_the_same_bits(step: int, save_steps: int, tmp_path: Path) -> None:
    given = recipe(dropout=0.2, save_steps=save_steps)
    straight, rows = trained(given, folder=tmp_path / "straight")
    with pytest.raises(Stopped):
        trained(given, folder=tmp_path / "halted", watcher=stop_at(step))
    resumed, more = trained(given, folder=tmp_path / "halted")
    assert same(straight.state_dict(), resumed.state_dict())
    assert figures(rows) == figures(more)
    for name in (WEIGHTS,):
        assert (tmp_path / "straight" / name).read_bytes() == (tmp_path / "halted" / name).read_bytes()


@pytest.mark.parametrize("optimiser", ["adamw", "radam"])
def test_a_run_may_be_killed_again_and_again(optimiser: str, tmp_path: Path) -> None:
    given = recipe(dropout=0.2, save_steps=1, optimiser=optimiser)
    straight, _ = trained(given)
    for step in range(2, 10, 2):
        with pytest.raises(Stopped):
            trained(given, folder=tmp_path, watcher=stop_at(step))
    assert same(straight.state_dict(), trained(given, folder=tmp_path)[0].state_dict())


def test_saved_steps_are_not_made_again(tmp_path: Path) -> None:
    given, seen = recipe(save_steps=2), []
    with pytest.raises(Stopped):
        trained(given, folder=tmp_path, watcher=stop_at(6))
    trained(given, folder=tmp_path, watcher=Watcher(step=lambda done, total: seen.append(done)))
    assert seen == [6, 7, 8, 9]  # the second epoch was saved after its second step, the fifth in all


def press_ctrl_c_at(*steps: int) -> Watcher:
    def look(done: int, total: int) -> None:
        if done in steps:
            os.kill(os.getpid(), signal.SIGINT)

    return Watcher(step=look)


@pytest.mark.parametrize("step", [1, 2, 3, 5, 7], ids="step{}".format)
def test_ctrl_c_saves_after_the_next_step_and_the_run_goes_on(step: int, tmp_path: Path) -> None:
    given, seen = recipe(dropout=0.2), []
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(Interrupted):
        trained(given, folder=tmp_path, watcher=press_ctrl_c_at(step))
    assert signal.getsignal(signal.SIGINT) is before
    watcher = Watcher(step=lambda done, total: seen.append(done))
    resumed, rows = trained(given, folder=tmp_path, watcher=watcher)
    straight, expected = trained(given)
    assert seen == list(range(step + 2, 10))
    assert same(straight.state_dict(), resumed.state_dict())
    assert figures(rows) == figures(expected)


def test_ctrl_c_at_the_very_end_finishes_the_run() -> None:
    assert len(trained(recipe(), watcher=press_ctrl_c_at(8))[1]) == 3
    assert len(trained(recipe(), watcher=press_ctrl_c_at(9))[1]) == 3


def test_a_second_ctrl_c_stops_at_once() -> None:
    def twice(done: int, total: int) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt) as caught:
        trained(recipe(), watcher=Watcher(step=twice))
    assert not isinstance(caught.value, Interrupted)


def test_a_run_may_stand_in_another_thread() -> None:
    found: list[dict[str, Tensor]] = []
    thread = threading.Thread(target=lambda: found.append(trained(recipe(epochs=1))[0].state_dict()))
    thread.start()
    thread.join()
    assert same(found[0], trained(recipe(epochs=1))[0].state_dict())


def test_the_folder_holds_metrics_and_the_best_weights(tmp_path: Path) -> None:
    model, rows = trained(recipe(), folder=tmp_path, facts={"about": 1}, extras={"more": torch.ones(2)})
    assert read_lines(tmp_path / METRICS) == rows
    tensors, facts = load_tensors(tmp_path / WEIGHTS)
    assert facts == {"about": 1}
    assert torch.equal(tensors.pop("more"), torch.ones(2))
    assert same(tensors, dict(model.state_dict()))
    assert {each.name for each in tmp_path.iterdir()} == {CHECKPOINT, METRICS, WEIGHTS}


def test_a_finished_folder_is_not_trained_again(tmp_path: Path) -> None:
    model, rows = trained(recipe(), folder=tmp_path)
    again, same_rows = trained(recipe(), folder=tmp_path, watcher=stop_at(1))
    assert rows == same_rows
    assert same(model.state_dict(), again.state_dict())


def test_a_checkpoint_of_another_run_is_refused(tmp_path: Path) -> None:
    trained(recipe(), folder=tmp_path, facts={"about": 1})
    with pytest.raises(
        CheckpointError, match=r"checkpoint\.safetensors belongs to another run than this one"
    ):
        trained(recipe(), folder=tmp_path, facts={"about": 2})


def test_a_checkpoint_of_other_sizes_is_refused(tmp_path: Path) -> None:
    trained(recipe(), folder=tmp_path)
    with pytest.raises(CheckpointError, match=r"checkpoint\.safetensors does not fit the model: "):
        trained(recipe(width=16), folder=tmp_path)


@pytest.mark.parametrize("kept", [0, 30, 0.5, 0.99], ids=str)
def test_a_broken_checkpoint_is_refused(kept: float, tmp_path: Path) -> None:
    trained(recipe(epochs=1), folder=tmp_path)
    path = tmp_path / CHECKPOINT
    whole = path.read_bytes()
    path.write_bytes(whole[: int(kept * len(whole)) if kept < 1 else int(kept)])
    with pytest.raises(CheckpointError, match=r"checkpoint\.safetensors is not a whole safetensors file"):
        trained(recipe(epochs=1), folder=tmp_path)


def test_a_loss_that_is_not_finite_is_a_sentence() -> None:
    words = r"the loss is nan .* in epoch 1, step 2; a smaller lr than 1e\+30 may help"
    with pytest.raises(BadInput, match=words):
        trained(recipe(lr=1e30))


def test_a_loss_that_is_not_finite_after_the_only_step_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="a smaller lr"):
        trained(recipe(lr=1e30, batch=64), folder=tmp_path)


def test_labels_that_do_not_fit_are_named() -> None:
    assert targets(WHOLE, ("1", "0")).tolist() == [1 - int(label) for label in WHOLE.labels or ()]
    with pytest.raises(BadInput, match="echo: has no labels"):
        targets(replace(WHOLE, labels=None), CLASSES)
    with pytest.raises(BadInput, match="echo: case 0 has class 'x', expected one of 0, 1"):
        targets(replace(WHOLE, labels=("x",) * 24), CLASSES)


def test_scores_do_not_depend_on_the_batch_and_keep_the_mode() -> None:
    model = started(recipe(dropout=0.5)).train()
    whole = scores(model, WHOLE)
    assert whole.shape == (24, 2)
    assert model.training
    for size in (1, 5):
        assert torch.allclose(scores(model, WHOLE, batch=size), whole, rtol=0, atol=1e-6)
    assert not scores(model.eval(), WHOLE).requires_grad
    assert not model.training


def test_accuracy_and_loss_are_the_definition() -> None:
    model = started(recipe())
    made, right = scores(model, WHOLE), targets(WHOLE, CLASSES)
    accuracy, loss = accuracy_and_loss(model, WHOLE, CLASSES)
    assert accuracy == sum(int(a == b) for a, b in zip(made.argmax(-1), right, strict=True)) / 24
    assert loss == pytest.approx(-made.log_softmax(-1)[range(24), right].mean().item(), rel=1e-6)


def test_double_precision_trains_and_scores() -> None:
    model, rows = trained(recipe(precision="64-true", epochs=1))
    assert len(rows) == 1
    assert model.head.weight.dtype == torch.float64


def test_the_engine_refuses_with_a_sentence() -> None:
    with pytest.raises(BadInput, match=r"training: .*accelerator.*'none'"):
        make_fabric(recipe(accelerator="none"))
    with pytest.raises(BadInput, match="training: Precision '7' is invalid"):
        make_fabric(recipe(precision="7"))


def test_a_missing_engine_names_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "lightning_fabric", None)
    with pytest.raises(MissingExtra, match=r"training: needs lightning-fabric.*kernelhead\[cli\]"):
        make_fabric(recipe())


def test_one_process_speaks_for_itself() -> None:
    assert is_main()


def test_the_parts_are_what_the_tests_say() -> None:
    assert (len(TRAIN), len(VALID), -(-len(TRAIN) // 8)) == (18, 6, STEPS)
    assert isinstance(TRAIN, Series)
