"""A field of jobs that take a moment: one counts, one fails, one dies, one takes its time."""

import os
import signal
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from kernelhead.rng import seeded
from kernelhead.training import Job, Outcome, run_jobs


def jobs(variants: Sequence[str] = ("draws",), *, seeds: int = 3, data: str = "dice") -> list[Job]:
    return [
        Job("tiny", data, name, "clean", seed, {"sides": 6}) for name in variants for seed in range(seeds)
    ]


def run(job: Job, *, notes: Path | None = None) -> Outcome:
    """What its variant says; a note is left for every start."""
    if notes is not None:
        with notes.open("a", encoding="utf-8") as file:
            file.write(f"{job.key} {os.getpid()}\n")
    if job.variant == "fails":
        raise ValueError("the dice fell off the table")
    if job.variant == "dies":
        os.kill(os.getpid(), signal.SIGKILL)
    if job.variant == "infinite":
        return Outcome({"mean": float("inf")})
    if job.variant == "bends":
        return Outcome({"mean": 0.5}, curves={"line": [0.75, 0.25] if job.seed == 0 else [0.5, float("nan")]})
    if job.variant == "slow" and job.seed > 0:
        time.sleep(60)
    import torch

    with seeded(job.seed):
        return Outcome({"mean": torch.randn(1000).mean().item()}, parameters=job.recipe["sides"])


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)  # which a shell's background jobs do not have
    folder = Path(sys.argv[1])
    run_jobs(
        partial(run, notes=folder / "notes"),
        jobs([sys.argv[2]]),
        out=folder,
        workers=2,
        ray=sys.argv[3] if len(sys.argv) > 3 else None,
    )
