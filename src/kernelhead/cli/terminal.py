"""What the verbs share: a console, a progress bar, tables, and a sentence for every failure."""

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from kernelhead.report import summary
from kernelhead.training import Watcher

# A pipe has no width: lines there are as long as their text needs.
CONSOLE = Console(highlight=False, soft_wrap=True, width=None if sys.stdout.isatty() else 160)


def say(text: str) -> None:
    """One line for the reader, free of markup, so that a name is shown as it is."""
    CONSOLE.print(text, markup=False)


def say_json(record: dict[str, Any]) -> None:
    """A record for another program."""
    print(json.dumps(record, indent=2))


@contextmanager
def watching(title: str) -> Iterator[Watcher]:
    """A progress bar on a terminal; elsewhere a line now and then."""
    if not CONSOLE.is_terminal:
        yield Watcher(epoch=_Lines(title))
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=CONSOLE, transient=False) as bars:
        title = escape(title)
        bar = bars.add_task(title, total=None)

        def step(done: int, total: int) -> None:
            bars.update(bar, completed=done, total=total)

        def epoch(row: dict[str, Any]) -> None:
            bars.update(
                bar, description=f"{title}  epoch {row['epoch']}, validation {row['valid_accuracy']:.1%}"
            )

        yield Watcher(step, epoch)


class _Lines:
    """Prints an epoch when it is half as far again as the last one that was printed."""

    def __init__(self, title: str) -> None:
        self.title, self.next = title, 1

    def __call__(self, row: dict[str, Any]) -> None:
        if row["epoch"] < self.next:
            return
        self.next = max(row["epoch"] + 1, int(row["epoch"] * 1.5))
        figures = f"loss {row['train_loss']:.4f}, validation accuracy {row['valid_accuracy']:.1%}"
        say(f"{self.title}: epoch {row['epoch']}, {figures}")


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
    CONSOLE.print(table)


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.1%}"
