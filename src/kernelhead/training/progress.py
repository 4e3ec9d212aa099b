"""How far a course has come, in a file, so that one that is killed goes on where it stood."""

import json
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from kernelhead.errors import CheckpointError, missing_extra
from kernelhead.records import plain, take_away
from kernelhead.training.store import (
    check_fit,
    load_into,
    load_tensors,
    optimiser_tensors,
    prepare_folder,
    restore_optimiser,
    save_tensors,
)

PAUSE = 20.0  # seconds from one writing to the next at least
SHARE = 100  # of the time that goes by, writing takes one part of so many at most
PARTS = ("model", "best", "optimiser", "place", "draws")  # of what a file holds
_HERE = threading.local()


@dataclass
class Journal:
    """The files of one job, one for each of its courses in the order in which they begin.

    Args:
        folder: of the files.
        name: of the job.
        commit: of the code that runs it.

    Attributes:
        begun: courses so far.
        spent: seconds that earlier tries at the job took, as far as they wrote.
        tries: at the job, this one and those that wrote.
        origin: commit of the code that began it.
    """

    folder: Path
    name: str
    commit: str | None = None
    begun: int = 0
    spent: float = 0.0
    tries: int = 1
    origin: str | None = None
    started: float = field(default_factory=time.monotonic)

    def next(self) -> Path:
        """The file of the course that begins."""
        self.begun += 1
        return self.folder / f"{self.name}.{self.begun}.safetensors"

    def seconds(self) -> float:
        """What the job has taken until now, earlier tries and all."""
        return self.spent + time.monotonic() - self.started

    def forget(self) -> None:
        """Take the files away, and what a try left that was killed while it wrote."""
        for form in (f"{self.name}.*.safetensors", f".{self.name}.*.safetensors.*"):
            for path in self.folder.glob(form):
                take_away(path)


def journal_of(folder: Path, *names: object, commit: str | None = None) -> Journal:
    """The journal of a job, named in letters that every system takes.

    Example:
        >>> journal_of(Path("here"), "lra", "ListOps", "primal+", 0).next().name
        'lra.ListOps.primal-.0.1.safetensors'
    """
    return Journal(folder, ".".join(re.sub(r"[^A-Za-z0-9_-]", "-", str(name)) for name in names), commit)


@contextmanager
def kept_in(journal: Journal | None) -> Iterator[None]:
    """Have the courses of a with-block keep their progress in a journal, or none of them."""
    before = getattr(_HERE, "journal", None)
    _HERE.journal = journal
    try:
        yield
    finally:
        _HERE.journal = before


@dataclass
class Pace:
    """How fast steps were made.

    Attributes:
        steps: made so far.
        seconds: of those that were timed.
        timed: how many these are.
        peak: most memory of the device, GiB.
    """

    steps: int = 0
    seconds: float = 0.0
    timed: int = 0
    peak: float = 0.0


@dataclass
class State:
    """All that the next step of a course depends on, in fixed places.

    Attributes:
        model: that is trained.
        optimiser: of its weights.
        places: other tensors, by name, that are written over.
        sources: generators of the order of the cases.
        device: where it is trained.
    """

    model: nn.Module
    optimiser: Optimizer
    places: dict[str, Tensor]
    sources: list[torch.Generator]
    device: torch.device


class Keeper:
    """The file of one course: read when it is made, written from time to time and at the end.

    Args:
        path: of the file.
        about: what tells the course from others; a file of another one is refused.
        journal: that counts what the job takes.

    Raises:
        CheckpointError: the file is damaged or of another course, or its folder cannot be written.
        MissingExtra: safetensors is not installed.
    """

    def __init__(self, path: Path, about: Mapping[str, Any], journal: Journal | None = None) -> None:
        if find_spec("safetensors") is None:
            raise missing_extra("keep", "safetensors", "cli")
        self.path, self.about, self.journal = path, json.loads(json.dumps(about, default=plain)), journal
        self.tensors: dict[str, Tensor] = {}
        self.facts: dict[str, Any] = {}
        self.pace, self.written, self.pause = Pace(), time.monotonic(), PAUSE
        prepare_folder(path.parent)
        if path.exists():
            self._read()

    @property
    def ended(self) -> bool:
        """Whether the course has come to its end before."""
        return bool(self.facts.get("ended"))

    @property
    def losses(self) -> list[float]:
        """Of the steps of a course that has ended."""
        made: list[float] = self.tensors["place.losses"].tolist()
        return made

    @property
    def figures(self) -> list[float]:
        """What those who watched have seen so far."""
        return [float(each) for each in self.facts.get("figures", [])]

    @property
    def since(self) -> int:
        """Looks since the highest of them."""
        return int(self.facts.get("since", 0))

    def put_back(self, state: State) -> dict[str, Tensor]:
        """Go on where the file stands; nothing where there is none.

        Returns:
            The best weights so far, none where nobody watched.

        Raises:
            CheckpointError: the file does not fit.
        """
        if not self.facts:
            return {}
        parts: dict[str, dict[str, Tensor]] = {name: {} for name in PARTS}
        for name, tensor in self.tensors.items():
            part, _, rest = name.partition(".")
            parts.setdefault(part, {})[rest] = tensor
        check_fit(self.path, state.model, parts["model"])
        if parts["best"]:
            check_fit(self.path, state.model, parts["best"])
        try:
            for name, place in state.places.items():
                if parts["place"][name].shape != place.shape:
                    raise CheckpointError(f"{name} is of another shape")
            rates = [group["lr"] for group in state.optimiser.param_groups]
            restore_optimiser(state.optimiser, parts["optimiser"])
            for group, rate in zip(state.optimiser.param_groups, rates, strict=True):
                group["lr"] = rate  # a tensor that steps write to, of which the optimiser has made a copy
            load_into(self.path, state.model, parts["model"])
            for name, place in state.places.items():
                place.copy_(parts["place"][name])
            for number, source in enumerate(state.sources):
                source.set_state(parts["draws"][f"source{number}"])
            torch.set_rng_state(parts["draws"]["cpu"])
            if state.device.type == "cuda":
                torch.cuda.set_rng_state(parts["draws"]["cuda"], state.device)
        except (KeyError, TypeError, ValueError, RuntimeError, CheckpointError) as error:
            raise CheckpointError(f"{self.path} does not fit the course: {error}") from error
        self.tensors = {}
        return {name: tensor.to(state.device) for name, tensor in parts["best"].items()}

    def due(self) -> bool:
        """Whether it is time to write."""
        return time.monotonic() - self.written >= self.pause

    def keep(
        self, state: State, pace: Pace, *, best: Mapping[str, Tensor], figures: list[float], since: int
    ) -> None:
        """Write how far the course has come.

        Raises:
            CheckpointError: the file cannot be written.
        """
        draws = {f"source{number}": source.get_state() for number, source in enumerate(state.sources)}
        draws["cpu"] = torch.get_rng_state()
        if state.device.type == "cuda":
            draws["cuda"] = torch.cuda.get_rng_state(state.device)
        parts: dict[str, Mapping[str, Tensor]] = {
            "model": state.model.state_dict(),
            "best": best,
            "optimiser": optimiser_tensors(state.optimiser),
            "place": state.places,
            "draws": draws,
        }
        tensors = {f"{part}.{name}": tensor for part, held in parts.items() for name, tensor in held.items()}
        self._write(tensors, pace, figures=figures, since=since, ended=False)

    def end(self, model: nn.Module, pace: Pace, *, losses: list[float], figures: list[float]) -> None:
        """Write what the course has come to.

        Raises:
            CheckpointError: the file cannot be written.
        """
        tensors = {f"model.{name}": tensor for name, tensor in model.state_dict().items()}
        tensors["place.losses"] = torch.tensor(losses, dtype=torch.float64)
        self._write(tensors, pace, figures=figures, ended=True)

    def load(self, model: nn.Module) -> None:
        """The weights that a course has ended with.

        Raises:
            CheckpointError: the file does not fit.
        """
        weights = {
            name.removeprefix("model."): tensor
            for name, tensor in self.tensors.items()
            if name.startswith("model.")
        }
        load_into(self.path, model, weights)

    def _read(self) -> None:
        try:
            self.tensors, self.facts = load_tensors(self.path)
        except CheckpointError as error:
            raise CheckpointError(f"{error}; take it away to begin anew") from error
        held = self.facts.get("about")
        if held != self.about:
            held = held if isinstance(held, dict) else {}
            others = [name for name in {**self.about, **held} if held.get(name) != self.about.get(name)]
            raise CheckpointError(
                f"{self.path} belongs to another course than this one, by its {', '.join(others)}; "
                "take it away to begin anew, or name another"
            )
        try:
            told = self.facts["pace"]
            self.pace = Pace(
                int(told["steps"]), float(told["seconds"]), int(told["timed"]), float(told["peak"])
            )
            spent, tries = float(self.facts["spent"]), int(self.facts["tries"])
            steps, last = self.pace.steps, int(self.about["course"]["steps"])
            if (
                not 0 < steps <= last
                or (steps == last and not self.ended)
                or "place.losses" not in self.tensors
            ):
                raise ValueError(f"it stands at step {steps} of {last}")
            _ = self.figures, self.since
        except (KeyError, TypeError, ValueError) as error:
            raise CheckpointError(f"{self.path} does not say how far a course has come: {error}") from error
        if self.journal is not None:
            self.journal.spent = max(self.journal.spent, spent)
            self.journal.tries = max(self.journal.tries, tries + 1)
            self.journal.origin = self.journal.origin or self.facts.get("commit")

    def _write(self, tensors: dict[str, Tensor], pace: Pace, **facts: Any) -> None:
        began = time.monotonic()
        job = Journal(self.path.parent, "") if self.journal is None else self.journal
        told = {"spent": job.seconds(), "tries": job.tries, "commit": job.origin or job.commit}
        save_tensors(self.path, tensors, {"about": self.about, "pace": vars(pace), **told, **facts})
        self.written = time.monotonic()
        self.pause = max(PAUSE, SHARE * (self.written - began)) if PAUSE else 0.0


def keeper_of(path: Path | None, about: Callable[[], Mapping[str, Any]]) -> Keeper | None:
    """The keeper of a course that begins: of a file, of the journal that is open, or none.

    Args:
        path: of the file.
        about: what tells the course from others; asked for where there is a keeper.
    """
    journal: Journal | None = getattr(_HERE, "journal", None)
    if path is not None:
        return Keeper(Path(path), about())
    return None if journal is None else Keeper(journal.next(), about(), journal)
