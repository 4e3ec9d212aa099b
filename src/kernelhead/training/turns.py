"""Several runs in one process, in turns: steps of all are under way on a device that one does not fill."""

import threading
from collections import deque
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any, TypeVar, cast

import torch

from kernelhead.shapes import check_size

Task = TypeVar("Task")
Made = TypeVar("Made")
Part = TypeVar("Part")
_HERE = threading.local()


class Stopped(BaseException):
    """Nobody waits for a run any more; passes through what catches mere errors."""


def pass_on() -> None:
    """Let the next run go on until it is this one's turn again; nothing where a run is alone."""
    seat: _Seat | None = getattr(_HERE, "seat", None)
    if seat is not None:
        seat.pass_on()


def meet(part: Part, do: Callable[[list[Part]], list[Made]]) -> Made:
    """Do something at once for this run and those of its kind that are under way, when all have come to it.

    Args:
        part: what this run brings.
        do: from what all bring, in the order in which they began, to what each gets; called by one of them.
            A run that is alone, or of no kind, brings its own part only.

    Returns:
        What this run gets.
    """
    seat: _Seat | None = getattr(_HERE, "seat", None)
    return do([part])[0] if seat is None or seat.kind is None else seat.meet(part, do)


def in_turns(
    do: Callable[[Task], Made],
    tasks: Sequence[Task],
    *,
    at_once: int,
    kind: Callable[[Task], Hashable] | None = None,
) -> Iterator[tuple[Task, Made]]:
    """Do tasks in threads of which one runs at a time, from one `pass_on` to the next.

    Each has random generators and a CUDA stream of its own, so that it finds what it would find
    alone; what it has put on its stream goes on while others have their turn. Until all have ended
    the global generators are theirs.

    Args:
        do: what to do with a task; calls `pass_on` where another may go on.
        tasks: in the order in which they begin.
        at_once: how many are under way at a time.
        kind: of a task; those of one kind can `meet`. None if none can.

    Yields:
        A task and what was made of it, as they end.

    Raises:
        BadInput: `at_once` is not a positive whole number.

    Example:
        >>> said = []
        >>> def count(name):
        ...     for number in range(2):
        ...         said.append(f"{name}{number}")
        ...         pass_on()
        >>> len(list(in_turns(count, "abc", at_once=2)))
        3
        >>> said
        ['a0', 'b0', 'a1', 'b1', 'c0', 'c1']
    """
    waiting = deque(tasks)
    ended: SimpleQueue[tuple[Task, Made] | BaseException] = SimpleQueue()
    table = _Table(min(check_size("in_turns", "at_once", at_once), len(tasks)))

    def work(seat: _Seat) -> None:
        _HERE.seat = seat
        try:
            with seat.taken():
                while waiting and not table.closed:
                    task = waiting.popleft()
                    seat.begin(len(tasks) - len(waiting), None if kind is None else kind(task))
                    ended.put((task, do(task)))
        except BaseException as error:
            # Of whoever asked, and to be raised there.
            ended.put(error)

    threads = [threading.Thread(target=work, args=(seat,), daemon=True) for seat in table.seats]
    with _generators_kept():
        for thread in threads:
            thread.start()
        try:
            table.next()
            for _ in tasks:
                found = ended.get()
                if isinstance(found, BaseException):
                    raise found
                yield found
        finally:
            table.closed = True
            for thread in threads:
                thread.join()


class _Table:
    """Those who take turns, the one whose turn it is in front."""

    def __init__(self, seats: int) -> None:
        self.seats, self.closed = deque(_Seat(self) for _ in range(seats)), False

    def next(self) -> None:
        """The one in front may run."""
        if self.seats:
            self.seats[0].turn.release()


@dataclass(frozen=True)
class _Failed:
    """What a meeting ended with in place of a result."""

    error: Exception


class _Seat:
    """A place at the table, with what belongs to the run that has it."""

    def __init__(self, table: _Table) -> None:
        self.table, self.turn, self.state = table, threading.Semaphore(0), torch.get_rng_state()
        self.number, self.kind = 0, cast(Hashable, None)
        self.brought: list[Any] = []  # to a meeting that has not begun
        self.got: list[Any] = []  # from one that has ended
        self.stream: torch.cuda.Stream | None = None
        self.generator: torch.Generator | None = None
        if torch.cuda.is_available():
            self.stream, self.generator = torch.cuda.Stream(), torch.Generator("cuda")

    @contextmanager
    def taken(self) -> Iterator[None]:
        """From the first turn to the end of the last."""
        self._wait()
        try:
            with nullcontext() if self.stream is None else torch.cuda.stream(self.stream):
                yield
        finally:
            self.table.seats.remove(self)
            self.table.next()

    def begin(self, number: int, kind: Hashable) -> None:
        """A task, the so-manieth."""
        self.number, self.kind = number, kind

    def meet(self, part: Any, do: Callable[[list[Any]], list[Any]]) -> Any:
        """Wait for those of the same kind; the one that is there when all have come does it for all."""
        self.brought = [part]
        self.pass_on()  # so that all others have begun
        while not self.got:
            mates = sorted(
                (seat for seat in self.table.seats if seat.kind == self.kind), key=lambda seat: seat.number
            )
            if self.brought and all(seat.brought for seat in mates):
                self._lead(mates, do)
            else:
                self.pass_on()
        found = self.got.pop()
        if isinstance(found, _Failed):
            raise found.error
        return found

    def _lead(self, mates: "list[_Seat]", do: Callable[[list[Any]], list[Any]]) -> None:
        parts = [seat.brought.pop() for seat in mates]
        try:
            made = do(parts)
        except Exception as error:  # whatever it is, it is told to all who came
            made = [_Failed(error) for _ in mates]
        for seat, each in zip(mates, made, strict=True):
            seat.got.append(each)

    def pass_on(self) -> None:
        """To the next, and wait."""
        if len(self.table.seats) > 1:
            self.state = torch.get_rng_state()
            self.table.seats.rotate(-1)
            self.table.next()
            self._wait()
        if self.table.closed:
            raise Stopped

    def _wait(self) -> None:
        self.turn.acquire()
        torch.set_rng_state(self.state)
        if self.generator is not None:
            # The default generator then draws from this one, in graphs that are captured now too.
            _default().graphsafe_set_state(self.generator)


@contextmanager
def _generators_kept() -> Iterator[None]:
    state = torch.get_rng_state()
    drawn = _default().graphsafe_get_state() if torch.cuda.is_available() else None
    try:
        yield
    finally:
        torch.set_rng_state(state)
        if drawn is not None:
            _default().graphsafe_set_state(drawn)


def _default() -> torch.Generator:
    # There is one for each device once CUDA has begun, which a stream of a seat makes sure of.
    torch.cuda.init()
    return torch.cuda.default_generators[torch.cuda.current_device()]
