"""Projections of the same points by a layer, noted while a model is trained."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from kernelhead.errors import BadInput, ShapeError, unknown
from kernelhead.inspection.moves import TransportFigures
from kernelhead.inspection.transport import (
    PERMUTATIONS,
    TransportReport,
    transport_report,
    transport_trace,
)
from kernelhead.nn import evaluating

Layer = str | Callable[[nn.Module], Tensor]


class TrajectoryRecorder:
    """Notes where a layer puts given points, before training and whenever it is asked to look.

    A look calls the model in evaluation mode and without gradients, leaves every mode as it was and draws no
    random number, so that training is the same with a recorder and without. Projections are kept on the CPU.
    It hooks into both loops: ``fit_resident(..., watch=recorder.watching(figure))`` looks where that figure
    is taken, and ``Watcher(epoch=recorder.look)`` after every epoch of `fit`.

    Shapes: projections (..., d), one point a row.

    Args:
        model: that is trained.
        layer: path of a module of it, whose output is taken, or a function from the model to a tensor.
        inputs: called as ``model(inputs)``, ``model(*inputs)`` or ``model(**inputs)``; a function as `layer`
            needs none.
        labels: classes of the points, as `transport_report` takes them.
        start: where points are at the start; if None the inputs themselves where the layer keeps their shape,
            else its projections before training.

    Raises:
        BadInput: the layer is not reached or does not give a tensor.
        ShapeError: the start has another shape than the projections.
        UnknownName: the model has no such layer.

    Example:
        >>> model, x = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2)), torch.randn(6, 2)
        >>> recorder = TrajectoryRecorder(model, "2", x, labels=torch.tensor([0, 0, 0, 1, 1, 1]))
        >>> with torch.no_grad():
        ...     _ = model[2].bias.add_(1)
        >>> recorder.look()
        >>> len(recorder.projections), recorder.report().looks
        (2, 1)
    """

    def __init__(
        self,
        model: nn.Module,
        layer: Layer,
        inputs: Any = (),
        *,
        labels: Tensor,
        start: Tensor | None = None,
    ) -> None:
        self.model, self.layer, self.inputs, self.labels = model, layer, inputs, labels.cpu()
        self.untrained = self._project()
        if start is None:
            same = isinstance(inputs, Tensor) and inputs.shape == self.untrained.shape
            start = inputs if same else self.untrained
        elif start.shape != self.untrained.shape:
            raise ShapeError(
                f"TrajectoryRecorder: `start` has shape {tuple(start.shape)}, but projections have "
                f"{tuple(self.untrained.shape)}"
            )
        self.projections: list[Tensor] = [start.detach().float().cpu().clone()]

    def look(self, _: object = None) -> None:
        """Note where the layer puts the points now; what it is told is not used."""
        self.projections.append(self._project())

    def watching(self, figure: Callable[[nn.Module], float] | None = None) -> Callable[[nn.Module], float]:
        """A figure to watch that looks whenever it is taken.

        Args:
            figure: of the model, the higher the better; without one it is the number of looks, so that the
                last weights count as the best.
        """

        def watch(model: nn.Module) -> float:
            self.look()
            return float(len(self.projections)) if figure is None else figure(model)

        return watch

    def report(
        self,
        *,
        last: int | None = None,
        permutations: int = PERMUTATIONS,
        solver: str = "exact",
        seed: int = 0,
    ) -> TransportReport:
        """What `transport_report` reads off the projections, with the untrained null.

        Args:
            last: number of the look to end at, such as that of the best weights; the last one if None.
            permutations: draws of pairings at random.
            solver: "exact" or "sinkhorn".
            seed: of the draws.

        Raises:
            BadInput: there was no look yet, or not that many; or as `transport_report`.
            ShapeError: labels do not fit the projections.
            UnknownName: no such solver.
        """
        return transport_report(
            self._until(last),
            self.labels,
            untrained=self.untrained,
            permutations=permutations,
            solver=solver,
            seed=seed,
        )

    def trace(
        self, *, last: int | None = None, looks: int = 20, solver: str = "exact"
    ) -> dict[int, TransportFigures]:
        """What `transport_trace` reads off the projections.

        Args:
            last: number of the look to end at; the last one if None.
            looks: at how many projections, at most.
            solver: "exact" or "sinkhorn".

        Raises:
            BadInput: there was no look yet, or not that many; or as `transport_trace`.
        """
        return transport_trace(self._until(last), self.labels, looks=looks, solver=solver)

    def _until(self, last: int | None) -> Sequence[Tensor]:
        looks = len(self.projections) - 1
        if not looks or (last is not None and not 1 <= last <= looks):
            raise BadInput(f"TrajectoryRecorder: {looks} looks, asked to end at {last or 'the last'}")
        return self.projections[: (last or looks) + 1]

    @torch.no_grad()
    def _project(self) -> Tensor:
        with evaluating(self.model):
            if not isinstance(self.layer, str):
                found: object = self.layer(self.model)
            else:
                found = self._output(self.layer)
        if not isinstance(found, Tensor) or found.dim() < 2:
            what = tuple(found.shape) if isinstance(found, Tensor) else type(found).__name__
            raise BadInput(f"TrajectoryRecorder: layer {self.layer!r} gives {what}, expected points (..., d)")
        return found.detach().float().cpu().clone()

    def _output(self, path: str) -> object:
        modules = dict(self.model.named_modules())
        if path not in modules:
            raise unknown("TrajectoryRecorder", "layer", path, [name for name in modules if name])
        made: list[object] = []
        handle = modules[path].register_forward_hook(lambda module, given, output: made.append(output))
        try:
            if isinstance(self.inputs, Mapping):
                self.model(**self.inputs)
            else:
                self.model(*(self.inputs if isinstance(self.inputs, tuple | list) else (self.inputs,)))
        finally:
            handle.remove()
        if not made:
            raise BadInput(f"TrajectoryRecorder: the inputs do not reach layer {path!r}")
        return made[-1]
