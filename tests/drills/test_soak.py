"""Ten thousand steps: memory stays where it was after the first."""

import gc
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

from kernelhead.data import split
from kernelhead.models import SequenceClassifier
from kernelhead.training import Course, fit_resident
from kernelhead.training.loop import Watcher, fit, make_fabric
from tests.inputs import points
from tests.training.tiny import recipe, series

Tell = Callable[[str, object], None]
STEPS = 10_000
WARM = STEPS // 5
GROWTH = 8.0  # MiB from the warm part on; a leak of one number a step and weight is ten times that


def resident_mib() -> float:
    """What this process holds now."""
    gc.collect()
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmRSS"))


class Scale:
    """Weighs now and then."""

    def __init__(self, weigh: Callable[[], float]) -> None:
        self.weigh, self.steps, self.seen = weigh, 0, list[float]()

    def step(self) -> None:
        self.steps += 1
        if self.steps % (STEPS // 20) == 0:
            self.seen.append(self.weigh())

    @property
    def growth(self) -> float:
        """Of the last quarter over the first one after the warm part, in MiB."""
        after = self.seen[WARM * 20 // STEPS :]
        quarter = max(len(after) // 4, 1)
        return sum(after[-quarter:]) / quarter - sum(after[:quarter]) / quarter


def soaked(device: str, folder: Path, weigh: Callable[[], float]) -> Scale:
    """The loop of runs with checkpoints, as many epochs as make ten thousand steps."""
    whole, scale = series(84, seed=0), Scale(weigh)
    part, valid = split(whole, fraction=0.05, seed=0)
    steps = len(part)
    made = recipe("memory", epochs=-(-STEPS // steps), batch=1, accelerator=device, dropout=0.1, seed=3)
    model = SequenceClassifier(
        len(whole.classes), channels=2, width=8, depth=1, heads=2, attention="primal", rank=2, longest=18
    )
    watcher = Watcher(step=lambda done, total: scale.step())
    fit(model, part, valid, whole.classes, made, fabric=make_fabric(made), folder=folder, watcher=watcher)
    return scale


@pytest.mark.drill
def test_memory_is_flat_over_ten_thousand_steps(tmp_path: Path, record_property: Tell) -> None:
    scale = soaked("cpu", tmp_path, resident_mib)
    assert scale.steps >= STEPS
    assert scale.growth < GROWTH
    record_property("steps", f"{scale.steps:,}, {scale.seen[0]:.0f} to {scale.seen[-1]:.0f} MiB")


def resident_course(device: str, weigh: Callable[[], float]) -> Scale:
    scale = Scale(weigh)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2)).to(device)
    x, y = points(64, 8, dtype=torch.float32).to(device), (torch.arange(64) % 2).to(device)

    def watch(net: nn.Module) -> float:
        for _ in range(STEPS // 20):
            scale.step()
        return 0.0

    fit_resident(model, x, y, Course(STEPS, 8, lr=1e-3), compiled=False, watch=watch, every=STEPS // 20)
    return scale


@pytest.mark.drill
def test_memory_of_the_resident_loop_is_flat(record_property: Tell) -> None:
    scale = resident_course("cpu", resident_mib)
    assert scale.growth < GROWTH
    record_property("steps", f"{scale.steps:,}, {scale.seen[0]:.0f} to {scale.seen[-1]:.0f} MiB")


@pytest.mark.gpu
@pytest.mark.drill
def test_memory_of_a_gpu_is_flat(tmp_path: Path, record_property: Tell) -> None:
    for scale in (
        soaked("cuda", tmp_path, lambda: torch.cuda.memory_allocated() / 2**20),
        resident_course("cuda", lambda: torch.cuda.memory_allocated() / 2**20),
    ):
        assert scale.growth < GROWTH
        record_property("steps", f"{scale.steps:,}, {scale.seen[0]:.1f} to {scale.seen[-1]:.1f} MiB")


def test_a_leak_is_seen() -> None:
    held = 0.0

    def leaking() -> float:
        nonlocal held
        held += 1.0
        return held

    scale = Scale(leaking)
    for _ in range(STEPS):
        scale.step()
    assert scale.growth > GROWTH
