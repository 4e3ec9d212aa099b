"""TrajectoryRecorder: what it notes, in which loops, that it leaves training alone, and its words."""

import pytest
import torch
from torch import nn

from kernelhead.errors import BadInput, ShapeError, UnknownName
from kernelhead.inspection import TrajectoryRecorder
from kernelhead.rng import seeded
from kernelhead.training import Course, Watcher, fit_resident
from tests.inputs import points

LABELS = torch.arange(12) // 6


def network(*, dropout: float = 0.5) -> nn.Sequential:
    with seeded(0):
        return nn.Sequential(nn.Linear(2, 2), nn.Dropout(dropout), nn.Linear(2, 3))


def test_it_starts_from_the_inputs_where_a_layer_keeps_their_shape() -> None:
    x = points(12, 2, dtype=torch.float32)
    model = network()
    kept, wider = (TrajectoryRecorder(model, path, x, labels=LABELS) for path in ("0", "2"))
    assert torch.equal(kept.projections[0], x)
    assert torch.equal(wider.projections[0], wider.untrained)
    given = TrajectoryRecorder(model, "2", x, labels=LABELS, start=torch.ones(12, 3))
    assert float(given.projections[0].sum()) == 36


def test_training_is_the_same_with_and_without() -> None:
    x, y = points(12, 2, dtype=torch.float32), LABELS
    course, found = Course(20, 6, lr=1e-2), []
    for watched in (False, True):
        model = network()
        recorder = TrajectoryRecorder(model, "1", x, labels=y)
        watch = recorder.watching() if watched else None
        fitted = fit_resident(model, x, y, course, watch=watch, every=5)
        found.append((fitted.losses, [*model.parameters()]))
    assert found[0][0] == found[1][0]
    assert all(map(torch.equal, found[0][1], found[1][1]))
    assert len(recorder.projections) == 5
    with torch.no_grad():
        assert torch.equal(recorder.projections[-1], model.eval()[:2](x))
    assert recorder.report().looks == 4
    assert recorder.report(last=2).looks == 2
    assert [*recorder.trace(last=3, looks=3)] == [1, 2, 3]


def test_a_figure_goes_through() -> None:
    recorder = TrajectoryRecorder(network(), "0", points(12, 2, dtype=torch.float32), labels=LABELS)
    assert recorder.watching(lambda model: 0.25)(recorder.model) == 0.25
    assert len(recorder.projections) == 2


def test_the_other_loop_tells_it_of_epochs() -> None:
    recorder = TrajectoryRecorder(network(), "0", points(12, 2, dtype=torch.float32), labels=LABELS)
    Watcher(epoch=recorder.look).epoch({"epoch": 1})
    assert len(recorder.projections) == 2


def test_modes_are_given_back_and_inputs_may_be_several() -> None:
    class Sum(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(2, 2)

        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            made: torch.Tensor = self.inner(x + y)
            return made

    model, x = Sum(), torch.zeros(12, 2)
    model.train()
    first = TrajectoryRecorder(model, "inner", (x, x), labels=LABELS)
    named = TrajectoryRecorder(model, "inner", {"x": x, "y": x}, labels=LABELS)
    asked = TrajectoryRecorder(model, lambda net: net(x, x), labels=LABELS)
    assert model.training
    assert torch.equal(first.untrained, named.untrained)
    assert torch.equal(first.untrained, asked.untrained)


def test_words() -> None:
    model, x = network(), points(12, 2, dtype=torch.float32)
    with pytest.raises(UnknownName, match=r"TrajectoryRecorder: unknown layer 'blocks'"):
        TrajectoryRecorder(model, "blocks", x, labels=LABELS)
    with pytest.raises(ShapeError, match=r"`start` has shape \(12, 2\), but projections have \(12, 3\)"):
        TrajectoryRecorder(model, "2", x, labels=LABELS, start=x)
    with pytest.raises(BadInput, match=r"gives \(\), expected points"):
        TrajectoryRecorder(model, lambda net: torch.zeros(()), labels=LABELS)
    with pytest.raises(BadInput, match="gives str, expected points"):
        TrajectoryRecorder(model, lambda net: "a", labels=LABELS)  # type: ignore[arg-type,return-value]
    recorder = TrajectoryRecorder(model, "0", x, labels=LABELS)
    with pytest.raises(BadInput, match="0 looks, asked to end at the last"):
        recorder.report()
    recorder.look()
    with pytest.raises(BadInput, match="1 looks, asked to end at 2"):
        recorder.trace(last=2)
    unused = nn.ModuleDict({"used": nn.Linear(2, 2), "idle": nn.Linear(2, 2)})
    unused.forward = unused["used"].forward  # type: ignore[method-assign]
    with pytest.raises(BadInput, match="the inputs do not reach layer 'idle'"):
        TrajectoryRecorder(unused, "idle", x, labels=LABELS)
