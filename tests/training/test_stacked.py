"""Runs as one: a stack trains each model as it would be trained alone, and only what is alike is stacked."""

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from kernelhead.errors import BadInput
from kernelhead.models import DecisionTransformer, SequenceClassifier, action_loss
from kernelhead.nn import evaluating
from kernelhead.rng import seeded
from kernelhead.training import Job, Outcome, run_jobs
from kernelhead.training.course import Course
from kernelhead.training.resident import cross_entropy, fit_resident
from kernelhead.training.stacked import Run, alike, fit_runs
from kernelhead.training.steps import Fitted
from kernelhead.training.turns import in_turns, meet

COURSE = Course(12, 6, lr=1e-2, eta=0.1, reduction="sample", clip=0.5, weight_decay=0.1)


def classifier(attention: str, seed: int, **options: Any) -> SequenceClassifier:
    sizes = {"channels": 4, "width": 8, "depth": 2, "heads": 2, "rank": 3, "landmarks": 5}
    with seeded(seed):
        return SequenceClassifier(3, **{**sizes, "attention": attention, **options}).double()


def cases(seed: int, n: int = 26) -> tuple[tuple[Tensor, Tensor], Tensor]:
    with seeded(seed):
        lengths = torch.randint(3, 8, (n, 1))
        return (torch.randn(n, 7, 4).double(), torch.arange(7) < lengths), torch.randint(3, (n,))


def series_run(attention: str, seed: int, course: Course = COURSE, **changed: Any) -> Run:
    x, y = cases(seed)

    def watch(net: nn.Module) -> float:
        with torch.no_grad():
            return float((net(*x).argmax(-1) == y).float().mean())

    course = replace(course, seed=seed)
    made = Run(classifier(attention, seed), x, y, course, LOSS, False, True, watch, 5, None)
    return replace(made, **changed)


LOSS = partial(cross_entropy, smoothing=0.1)


def decision_run(seed: int) -> Run:
    with seeded(seed):
        model = DecisionTransformer(3, 2, width=8, depth=2, heads=2, attention="primal+", rank=3, inner=16,
                                    context=4, longest=20, dropout=0.0).double()  # fmt: skip
        n = 20
        first, mask = torch.randint(6, (n, 1)), torch.arange(4) < torch.randint(2, 5, (n, 1))
        x = (
            torch.randn(n, 4).double(), torch.randn(n, 4, 3).double(), torch.rand(n, 4, 2).double() - 0.5,
            first + torch.arange(4), mask,
        )  # fmt: skip
    return Run(model, x, x[2], replace(COURSE, seed=seed), action_loss, False, True, None, 5, None)


def close(one: Run, other: Run, made: Any, alone: Any) -> None:
    assert isinstance(made, Fitted)
    torch.testing.assert_close(torch.tensor(made.losses), torch.tensor(alone.losses), rtol=1e-6, atol=1e-6)
    assert made.watched == alone.watched
    # Not the weights: those that change nothing, such as biases of keys, go where rounding takes them.
    inputs = one.x if isinstance(one.x, tuple) else (one.x,)
    with evaluating(one.model), evaluating(other.model), torch.no_grad():
        torch.testing.assert_close(one.model(*inputs), other.model(*inputs), rtol=1e-6, atol=1e-8)


@pytest.mark.slow
@pytest.mark.plain
def test_a_stack_that_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = torch.compile  # without a compiler for code, and with all that comes before it
    monkeypatch.setattr(
        torch, "compile", lambda function, dynamic: chosen(function, dynamic=dynamic, backend="aot_eager")
    )
    stacked, plain = (
        [series_run("primal", seed, compiled=way) for seed in range(2)] for way in (True, False)
    )
    for run, twin, made, alone in zip(stacked, plain, fit_runs(stacked), fit_runs(plain), strict=True):
        close(run, twin, made, alone)


@pytest.mark.parametrize("attention", ["softmax", "primal", "primal+", "linear"])
@pytest.mark.parametrize(
    "changed",
    [{}, {"optimiser": "radam", "eta": 0.0}, {"accumulate": 2, "ema": 0.9}],
    ids=["", "radam", "ema"],
)
def test_each_is_trained_as_alone(attention: str, changed: dict[str, Any]) -> None:
    course = replace(COURSE, **changed)
    runs, others = ([series_run(attention, seed, course) for seed in range(3)] for _ in range(2))
    made, alone = fit_runs(runs), [fit_runs([run])[0] for run in others]
    for one, other, *found in zip(runs, others, made, alone, strict=True):
        close(one, other, *found)


def test_modes_windows_and_patches_are_trained_as_alone() -> None:
    def made(seed: int) -> Run:
        options = {"modes": 2, "window": 3, "patch": 2, "activation": "gelu"}
        return series_run("primal", seed, model=classifier("none,primal", seed, **options))

    runs, others = ([made(seed) for seed in range(2)] for _ in range(2))
    for one, other, found in zip(runs, others, fit_runs(runs), strict=True):
        close(one, other, found, fit_runs([other])[0])


def test_policies_are_trained_as_alone() -> None:
    runs, others = ([decision_run(seed) for seed in range(2)] for _ in range(2))
    for one, other, made in zip(runs, others, fit_runs(runs), strict=True):
        close(one, other, made, fit_runs([other])[0])


def test_weights_are_their_own_afterwards() -> None:
    runs = [series_run("primal", seed) for seed in range(2)]
    fit_runs(runs)
    for weight in runs[0].model.parameters():
        assert weight.untyped_storage().nbytes() == weight.numel() * weight.element_size()
        assert weight.requires_grad


def test_each_draws_its_own_dropout() -> None:
    x, y = cases(0)
    models = [classifier("softmax", 0, dropout=0.5) for _ in range(2)]
    runs = [Run(model, x, y, COURSE, LOSS, False, True, None, 5, None) for model in models]
    first, second = (made.losses for made in fit_runs(runs) if isinstance(made, Fitted))
    assert first != second


def test_one_that_diverges_is_told_alone() -> None:
    runs = [series_run("softmax", seed) for seed in range(2)]
    good, bad = runs
    assert isinstance(bad.x, tuple)
    bad.x[0].fill_(float("nan"))
    fitted, said = fit_runs([good, replace(bad, watch=None)])
    assert isinstance(fitted, Fitted)
    assert isinstance(said, BadInput)
    assert "the loss is nan after 12 steps; lower the lr" in str(said)


@pytest.mark.parametrize(
    "changed",
    [
        {"patience": 2},
        {"every": 4},
        {"course": replace(COURSE, lr=1e-3)},
        {"loss": partial(cross_entropy, smoothing=0.0)},
        {"loss": lambda model, x, y: cross_entropy(model, x, y)},
        {"model": classifier("softmax", 1)},
        {"x": (torch.randn(26, 8, 4), torch.ones(26, 8) > 0)},
        {"model": nn.Sequential(nn.Flatten(), nn.BatchNorm1d(28), nn.Linear(28, 3))},
    ],
    ids=["patience", "looks", "course", "smoothing", "loss", "model", "cases", "batch norm"],
)
def test_others_are_not_alike(changed: dict[str, Any]) -> None:
    first = series_run("primal", 0)
    assert alike([first, series_run("primal", 1)])
    assert not alike([first, series_run("primal", 1, **changed)])
    assert not alike([first, first])


def test_networks_with_batch_norm_are_not_stacked() -> None:
    made = [nn.Sequential(nn.Flatten(), nn.BatchNorm1d(28), nn.Linear(28, 3)) for _ in range(2)]
    (x, _), y = cases(0)
    assert not alike([Run(model, x, y, COURSE, LOSS, False, True, None, 5, None) for model in made])


def test_what_is_not_alike_is_trained_one_after_another() -> None:
    runs = [series_run("primal", 0), series_run("softmax", 1)]
    made, alone = (
        fit_runs(runs),
        [fit_runs([series_run(*each)])[0] for each in (("primal", 0), ("softmax", 1))],
    )
    assert [each.losses for each in made] == [each.losses for each in alone]  # type: ignore[union-attr]


def test_frozen_weights_and_buffers_may_differ() -> None:
    class Scaled(nn.Module):
        def __init__(self, seed: int) -> None:
            super().__init__()
            with seeded(seed):
                self.register_buffer("scale", torch.rand(4))
                self.register_buffer("shift", torch.ones(4))
                self.frozen, self.linear = nn.Linear(4, 4).requires_grad_(False), nn.Linear(4, 3)

        def forward(self, x: Tensor) -> Tensor:
            made: Tensor = self.linear(self.frozen(x * self.scale + self.shift))
            return made

    with seeded(0):
        x, y = torch.randn(20, 4).double(), torch.randint(3, (20,))
    runs, others = (
        [Run(Scaled(seed).double(), x, y, COURSE, LOSS, False, True, None, 5, None) for seed in range(2)]
        for _ in range(2)
    )
    for one, other, made in zip(runs, others, fit_runs(runs), strict=True):
        close(one, other, made, fit_runs([other])[0])


def fitted(job: Job) -> Outcome:
    if job.variant == "fails" and job.seed == 1:
        raise BadInput("one that fails")
    run = series_run("softmax" if job.variant == "fails" else job.variant, job.seed)
    made = fit_resident(run.model, run.x, run.y, run.course, loss=run.loss, watch=run.watch, every=run.every)
    return Outcome({"loss": made.losses[-1]})


@pytest.mark.parametrize("together", [2, 3, 6])
def test_jobs_of_one_kind_are_stacked(tmp_path: Path, together: int, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []

    def counted(runs: list[Run]) -> Any:
        sizes.append(len(runs))
        return fit_runs(runs)

    monkeypatch.setattr("kernelhead.training.resident.fit_runs", counted)
    variants = ("softmax", "primal", "fails")
    jobs = [Job("x", "d", variant, "clean", seed, {}) for variant in variants for seed in range(3)]
    rows = run_jobs(fitted, jobs, out=tmp_path / "together", together=together)
    assert sum(sizes) == 8
    assert max(sizes) == min(together, 3)
    assert together == 2 or sizes == [3, 3, 2]
    for job, row in zip(jobs, rows, strict=True):
        if job.variant == "fails" and job.seed == 1:
            assert "one that fails" in row["error"]
        else:
            assert row["figures"]["loss"] == pytest.approx(fitted(job).figures["loss"], rel=1e-6)


def test_whatever_a_meeting_ends_with_all_are_told() -> None:
    def broken(_: list[int]) -> list[int]:
        raise RuntimeError("no")

    def work(number: int) -> str:
        try:
            return str(meet(number, broken))
        except RuntimeError as error:
            return f"{number} {error}"

    assert sorted(made for _, made in in_turns(work, range(3), at_once=3, kind=lambda _: 0)) == [
        "0 no", "1 no", "2 no"
    ]  # fmt: skip


def test_a_meeting_has_parts_in_order_and_a_result_each() -> None:
    seen = []

    def doubled(parts: list[int]) -> list[int]:
        seen.append(parts)
        return [2 * part for part in parts]

    def work(number: int) -> int:
        return meet(meet(number, doubled), doubled)

    made = dict(in_turns(work, range(5), at_once=4, kind=lambda number: number % 2))
    assert made == {number: 4 * number for number in range(5)}
    assert [0, 2] in seen
    assert [1, 3] in seen
    assert meet(7, doubled) == 14


@pytest.mark.gpu
@pytest.mark.parametrize("attention", ["softmax", "primal", "primal+"])
@pytest.mark.parametrize("precision", ["32", "bf16"])
def test_a_stack_on_a_gpu(attention: str, precision: str) -> None:
    def on_gpu(run: Run) -> Run:
        assert isinstance(run.x, tuple)
        x, y = (run.x[0].float().cuda(), run.x[1].cuda()), run.y.cuda()
        course = replace(run.course, precision=precision, steps=30)
        return replace(run, model=run.model.float().cuda(), x=x, y=y, watch=None, course=course)

    runs, others = ([on_gpu(series_run(attention, seed)) for seed in range(3)] for _ in range(2))
    for made, other in zip(fit_runs(runs), others, strict=True):
        alone = fit_runs([other])[0]
        assert isinstance(made, Fitted)
        assert isinstance(alone, Fitted)
        away = 1e-3 if precision == "32" else 0.1
        torch.testing.assert_close(
            torch.tensor(made.losses), torch.tensor(alone.losses), rtol=away, atol=away
        )
