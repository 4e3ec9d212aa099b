"""Turns: one runs at a time, each finds what it would find alone, and all end when nobody waits."""

import threading
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from kernelhead.errors import BadInput
from kernelhead.rng import seeded
from kernelhead.training import Job, Outcome, run_jobs
from kernelhead.training.course import Course
from kernelhead.training.resident import fit_resident
from kernelhead.training.turns import in_turns, pass_on


def fitted(seed: int, device: str = "cpu", *, compiled: bool = False) -> list[float]:
    """Losses of a network that draws in training, with more steps the larger the seed."""
    with seeded(9):
        x, y = torch.randn(40, 6), torch.randint(3, (40,))
    with seeded(seed):
        model = nn.Sequential(nn.Linear(6, 16), nn.Dropout(0.5), nn.ReLU(), nn.Linear(16, 3)).to(device)
    x, y = x.to(device), y.to(device)

    def watch(net: nn.Module) -> float:
        return float((net(x).argmax(-1) == y).float().mean())

    course = Course(20 + 5 * seed, 8, lr=0.01, seed=seed)
    return fit_resident(model, x, y, course, watch=watch, every=7, compiled=compiled).losses


def drawn(job: Job) -> Outcome:
    if job.seed == 1:
        raise BadInput("one that fails")
    return Outcome({"loss": fitted(job.seed)[-1]})


@pytest.mark.parametrize("at_once", [1, 2, 3, 9])
def test_each_finds_what_it_finds_alone(at_once: int) -> None:
    alone = {seed: fitted(seed) for seed in range(5)}
    assert dict(in_turns(fitted, range(5), at_once=at_once)) == alone


def test_global_generators_are_as_before() -> None:
    before = torch.get_rng_state()
    dict(in_turns(fitted, range(3), at_once=3))
    assert torch.equal(before, torch.get_rng_state())


def test_one_runs_at_a_time() -> None:
    running, most = 0, 0

    def work(_: int) -> None:
        nonlocal running, most
        for _ in range(20):
            running += 1
            most = max(most, running)
            running -= 1
            pass_on()

    assert len(list(in_turns(work, range(6), at_once=4))) == 6
    assert most == 1


def test_an_error_ends_all_of_them() -> None:
    ends: list[int] = []

    def work(number: int) -> None:
        try:
            for turn in range(1000):
                if number == 2 and turn == 3:
                    raise ValueError("number 2")
                pass_on()
        finally:
            ends.append(number)

    with pytest.raises(ValueError, match="number 2"):
        list(in_turns(work, range(4), at_once=4))
    assert sorted(ends) == [0, 1, 2, 3]


def test_who_stops_asking_stops_them() -> None:
    before, made = threading.active_count(), in_turns(fitted, range(30), at_once=3)
    next(made)
    made.close()
    assert threading.active_count() == before


def test_pass_on_alone_is_nothing() -> None:
    pass_on()


def test_nothing_to_do() -> None:
    assert list(in_turns(fitted, [], at_once=2)) == []


def test_a_wrong_number_is_named() -> None:
    with pytest.raises(BadInput, match="in_turns: at_once is 0, expected a whole number of at least 1"):
        next(in_turns(fitted, [1], at_once=0))


def test_a_ledger_of_jobs_in_turns(tmp_path: Path) -> None:
    jobs = [Job("tiny", "set", "variant", "clean", seed, {}) for seed in range(4)]
    rows = run_jobs(drawn, jobs, out=tmp_path, together=3)
    assert [row["status"] for row in rows] == ["done", "failed", "done", "done"]
    assert {row["together"] for row in rows} == {3}
    assert [row["figures"]["loss"] for row in rows if row["status"] == "done"] == [
        fitted(seed)[-1] for seed in (0, 2, 3)
    ]


def test_turns_and_processes_exclude_each_other(tmp_path: Path) -> None:
    job = Job("tiny", "set", "variant", "clean", 0, {})
    with pytest.raises(BadInput, match="together is 2, which is in this process; leave out workers and ray"):
        run_jobs(drawn, [job], out=tmp_path, together=2, workers=2)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")  # of the compiler
@pytest.mark.gpu
@pytest.mark.parametrize("compiled", [False, True])
def test_graphs_in_turns_find_what_they_find_alone(compiled: bool) -> None:
    def on_gpu(seed: int) -> list[float]:
        return fitted(seed, "cuda", compiled=compiled)

    alone = {seed: on_gpu(seed) for seed in range(4)}
    assert dict(in_turns(on_gpu, range(4), at_once=3)) == alone


@pytest.mark.gpu
def test_streams_are_their_own() -> None:
    def work(_: int) -> int:
        pass_on()
        made: Tensor = torch.ones(3, device="cuda")
        pass_on()
        return torch.cuda.current_stream().cuda_stream if made.sum() == 3 else 0

    streams = {stream for _, stream in in_turns(work, range(3), at_once=3)}
    assert len(streams) == 3
    assert 0 not in streams
