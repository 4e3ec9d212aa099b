"""Small sets of events whose answer is known, and a file of them."""

from pathlib import Path

import numpy as np

from kernelhead.data import Events, lag_lookup


def drawn(count: int = 40, seed: int = 0) -> Events:
    """Six events a sequence; the label is the type two days before the question."""
    return lag_lookup(count, events=6, types=3, lag=2.0, seed=seed)


def in_turn(count: int = 20, seed: int = 0) -> Events:
    """Nine events a sequence: b after a short wait, and c after a long one."""
    draws, pairs = np.random.default_rng(seed), []
    for _ in range(count):
        waits = draws.choice([0.5, 4.0], 8)
        types = ["a", *("b" if wait < 1 else "c" for wait in waits)]
        pairs.append((np.concatenate([[0.0], waits.cumsum()]), types))
    return Events.of(pairs, "turns")


def write(path: Path, events: Events, *, labels: bool = True) -> Path:
    """The events as a CSV file."""
    lines = ["sequence,time,type,label" if labels else "sequence,time,type"]
    for number, (times, kinds) in enumerate(events):
        end = f",{events.labels[number]}" if labels and events.labels else ""
        lines += [f"s{number},{time!r},{kind}{end}" for time, kind in zip(times.tolist(), kinds, strict=True)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path
