"""Questions about event sequences, which are stored once: what a question sees is gathered by its place."""

from dataclasses import dataclass, fields, replace

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from kernelhead.data import Events
from kernelhead.errors import BadInput, unknown
from kernelhead.shapes import check_size
from kernelhead.training.resident import cross_entropy, scores_of

ASKED = ("last", "target")
PART = 8192  # questions whose windows are held at a time

Window = tuple[Tensor, Tensor, Tensor, Tensor]


@dataclass(frozen=True, eq=False)
class Questions:
    """Questions about sequences of events, each with the events it may see, its time and its answer.

    Shapes: types and times (e,), of all events of all sequences; first, last, asked and answers (q,):
    question i sees the last `length` of the events first[i] to last[i] - 1.

    Args:
        types: of the events.
        times: of the events, in float64.
        first: where the sequence begins.
        last: behind the last event that is seen.
        asked: when.
        answers: classes; -1 where they are not known.
        length: events of a window.

    Example:
        >>> from kernelhead.data import Events
        >>> events = Events.of([([0.0, 2.0, 5.0], "aba")], "one")
        >>> made = Questions.of_next(events, length=2, at="target")
        >>> types, times, asked, mask = made.windows(*made.inputs)
        >>> types.tolist(), mask.tolist(), asked.tolist(), made.answers.tolist()
        ([[0, 0], [0, 1]], [[False, True], [True, True]], [2.0, 5.0], [1, 0])
    """

    types: Tensor
    times: Tensor
    first: Tensor
    last: Tensor
    asked: Tensor
    answers: Tensor
    length: int

    @classmethod
    def of_next(cls, events: Events, *, length: int, at: str = "last") -> "Questions":
        """For every event but the first of a sequence: what type is it, given those before it?

        Args:
            events: the sequences.
            length: events that are seen at most.
            at: the question is asked at the time of the "last" event that is seen, or, "target", at that
                of the event itself, which then is given away.

        Raises:
            BadInput: no sequence has two events.
            UnknownName: there is no such `at`.
        """
        if at not in ASKED:
            raise unknown("Questions", "at", at, ASKED)
        lengths, starts = _layout(events)
        whole = np.arange(lengths.sum())
        first = np.repeat(starts, lengths)
        last = whole[whole > first]
        if not len(last):
            raise BadInput(f"Questions: no sequence of {events.name!r} has two events, so none comes next")
        types, times = np.concatenate(events.types), np.concatenate(events.times)
        return _made(types, times, first[last], last, times[last - (at == "last")], types[last], length)

    @classmethod
    def of_last(
        cls, events: Events, classes: tuple[str, ...], *, length: int, asked: bool = True
    ) -> "Questions":
        """One for every whole sequence, asked when the events say so, else at its last event.

        Args:
            events: the sequences; their labels are the answers, if they have any.
            classes: names of the answers.
            length: events that are seen at most.
            asked: whether the events' own times of questions count.

        Raises:
            BadInput: a label is not among the classes.
        """
        lengths, starts = _layout(events)
        place = {name: index for index, name in enumerate(classes)}
        for number, label in enumerate(events.labels or ()):
            if label not in place:
                raise BadInput(
                    f"{events.name}: sequence {number} has label {label!r}, expected one of "
                    f"{', '.join(classes)}"
                )
        answers = np.array([place[label] for label in events.labels or ()] or [-1] * len(events))
        when = events.asked if asked and events.asked is not None else np.array([t[-1] for t in events.times])
        types, times = np.concatenate(events.types), np.concatenate(events.times)
        return _made(types, times, starts, starts + lengths, when, answers, length)

    def __len__(self) -> int:
        """How many there are."""
        return len(self.answers)

    @property
    def inputs(self) -> tuple[Tensor, Tensor, Tensor]:
        """What tells a question from another: first, last, asked."""
        return self.first, self.last, self.asked

    def on(self, device: torch.device) -> "Questions":
        """All of it on a device."""
        moved = {each.name: getattr(self, each.name) for each in fields(self) if each.name != "length"}
        return replace(self, **{name: tensor.to(device) for name, tensor in moved.items()})

    def windows(self, first: Tensor, last: Tensor, asked: Tensor) -> Window:
        """What some questions see: types, times, when they are asked, and a mask.

        Shapes: first, last, asked (b,); returns (b, length), (b, length), (b,) and (b, length). Shorter
        sequences are padded in front.
        """
        place = last.unsqueeze(1) + torch.arange(-self.length, 0, device=last.device)
        mask = place >= first.unsqueeze(1)
        place = torch.where(mask, place, first.unsqueeze(1))
        return self.types[place], self.times[place], asked, mask

    def loss(self, model: nn.Module, x: tuple[Tensor, Tensor, Tensor], y: Tensor) -> Tensor:
        """Cross-entropy of a batch of questions; see `fit_resident`."""
        return cross_entropy(model, self.windows(*x), y)

    def scores(self, model: nn.Module, *, precision: str = "32") -> Tensor:
        """Class scores of all questions, (q, classes), windows made a part at a time."""
        parts = zip(*(each.split(PART) for each in self.inputs), strict=True)
        return torch.cat([scores_of(model, self.windows(*part), precision=precision) for part in parts])

    def accuracy_and_loss(self, model: nn.Module, *, precision: str = "32") -> tuple[float, float]:
        """Share of right answers and mean cross-entropy."""
        made = self.scores(model, precision=precision)
        right = (made.argmax(-1) == self.answers).double().mean()
        return float(right), float(F.cross_entropy(made, self.answers))


def _layout(events: Events) -> tuple[np.ndarray, np.ndarray]:
    lengths = np.array([*map(len, events.times)])
    return lengths, np.cumsum(lengths) - lengths


def _made(
    types: np.ndarray,
    times: np.ndarray,
    first: np.ndarray,
    last: np.ndarray,
    asked: np.ndarray,
    answers: np.ndarray,
    length: int,
) -> Questions:
    arrays = types, times, first, last, np.asarray(asked, dtype=np.float64), answers
    made = [torch.from_numpy(np.ascontiguousarray(each)) for each in arrays]
    return Questions(
        made[0], made[1], made[2], made[3], made[4], made[5], check_size("Questions", "length", length)
    )
