"""What the verbs share: a console, a progress bar and tables."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    TaskProgressColumn,
    TextColumn,
    TimeRemainingColumn,
)
from rich.table import Column, Table

from kernelhead.cli.voice import VOICE
from kernelhead.cli.voice import say_json as say_json
from kernelhead.report import summary
from kernelhead.training import Watcher

PIPED = 160  # a pipe has no width: lines there are as long as their text needs, tables at most this
ROOMY = 80  # columns from which on a progress bar has room beside its words


class _Console(Console):
    def on_broken_pipe(self) -> None:
        """Leave it to `main`, which knows what a reader that has gone means."""
        raise BrokenPipeError


CONSOLE = _Console(
    highlight=False, soft_wrap=True, width=None if sys.stdout and sys.stdout.isatty() else PIPED
)


def say(text: str) -> None:
    """One line of a result, free of markup, so that a name is shown as it is."""
    CONSOLE.print(text, markup=False)


def note(text: str) -> None:
    """One line beside a result, such as where it was written; --quiet leaves it out."""
    if not VOICE.quiet:
        say(text)


def show(table: Table) -> None:
    """A table with all its letters: cells are folded, and lines of a terminal narrower than that broken."""
    for column in table.columns:
        column.overflow = "fold"
    least = CONSOLE.measure(table, options=CONSOLE.options.update(width=PIPED * PIPED)).minimum
    if least > CONSOLE.width:
        table.width = least
    CONSOLE.print(table, soft_wrap=False, crop=False, no_wrap=False)


@contextmanager
def watching(title: str) -> Iterator[Watcher]:
    """A progress bar on a terminal; elsewhere a line now and then; nothing where it is to be quiet."""
    if VOICE.quiet:
        yield Watcher()
        return
    if not CONSOLE.is_terminal:
        yield Watcher(epoch=_Lines(title))
        return
    with Progress(*_columns(CONSOLE.width), console=CONSOLE) as bars:
        title = escape(title)
        bar = bars.add_task(title, total=None)

        def step(done: int, total: int) -> None:
            bars.update(bar, completed=done, total=total)

        def epoch(row: dict[str, Any]) -> None:
            bars.update(
                bar, description=f"{title}  epoch {row['epoch']}, validation {row['valid_accuracy']:.1%}"
            )

        yield Watcher(step, epoch)


def _columns(width: int) -> list[ProgressColumn]:
    """What fits beside a title; on a narrow terminal that comes last and is cut short."""
    narrow = width < ROOMY
    room = max(width - len("100%  "), 1) if narrow else None
    words = TextColumn(
        "{task.description}", table_column=Column(width=room, no_wrap=True, overflow="ellipsis")
    )
    if narrow:
        return [TaskProgressColumn(table_column=Column(width=len("100%"))), words]
    return [words, BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()]


class _Lines:
    """Prints an epoch when it is half as far again as the last one that was printed."""

    def __init__(self, title: str) -> None:
        self.title, self.next = title, 1

    def __call__(self, row: dict[str, Any]) -> None:
        if row["epoch"] < self.next:
            return
        self.next = max(row["epoch"] + 1, int(row["epoch"] * 1.5))
        figures = f"loss {row['train_loss']:.4f}, validation accuracy {row['valid_accuracy']:.1%}"
        note(f"{self.title}: epoch {row['epoch']}, {figures}")


def say_runs(folders: list[Path]) -> None:
    """One table of runs: accuracy, parameters, seconds an epoch, peak memory."""
    table = Table("run", title="accuracy, best epoch on validation data, size and cost", title_justify="left")
    for heading in ("test", "validation", "epoch", "parameters", "s/epoch", "peak MiB"):
        table.add_column(heading, justify="right", no_wrap=True)
    for row in summary(folders):
        table.add_row(
            escape(str(row["run"])),
            _share(row["test_accuracy"]),
            _share(row["valid_accuracy"]),
            str(row["best_epoch"] or "-"),
            f"{row['parameters']:,}" if row["parameters"] else "-",
            f"{row['seconds_per_epoch']:.3f}" if row["seconds_per_epoch"] else "-",
            f"{row['peak_memory_mib']:,.0f}" if row["peak_memory_mib"] else "-",
        )
    show(table)


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.1%}"
