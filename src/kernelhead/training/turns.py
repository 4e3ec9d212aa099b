"""Several runs in one process, in turns: steps of all are under way on a device that one does not fill."""

import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from queue import SimpleQueue
from typing import TypeVar

import torch

from kernelhead.shapes import check_size

Task = TypeVar("Task")
Made = TypeVar("Made")
_HERE = threading.local()


class Stopped(BaseException):
    """Nobody waits for a run any more; passes through what catches mere errors."""


def pass_on() -> None:
    """Let the next run go on until it is this one's turn again; nothing where a run is alone."""
    seat: _Seat | None = getattr(_HERE, "seat", None)
    if seat is not None:
        seat.pass_on()


def in_turns(
    do: Callable[[Task], Made], tasks: Sequence[Task], *, at_once: int
) -> Iterator[tuple[Task, Made]]:
    """Do tasks in threads of which one runs at a time, from one `pass_on` to the next.

    Each has random generators and a CUDA stream of its own, so that it finds what it would find
    alone; what it has put on its stream goes on while others have their turn. Until all have ended
    the global generators are theirs.

    Args:
        do: what to do with a task; calls `pass_on` where another may go on.
        tasks: in the order in which they begin.
        at_once: how many are under way at a time.

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


class _Seat:
    """A place at the table, with what belongs to the run that has it."""

    def __init__(self, table: _Table) -> None:
        self.table, self.turn, self.state = table, threading.Semaphore(0), torch.get_rng_state()
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
