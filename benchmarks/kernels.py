"""Which kernels take the time of a training step of a long-range model? The longest first.

Run: python -m benchmarks.kernels TASK ATTENTION [--least 10], on a machine with a CUDA device.
"""

import argparse
import sys
from collections.abc import Iterable, Iterator

import torch

from benchmarks.bench_long_range import ATTENTIONS, TASKS, training_step
from benchmarks.harness import captured
from kernelhead.errors import KernelheadError, unknown

STEPS = 5
NAME = 110  # letters that are shown of a kernel's name

Seen = tuple[str, int, float]  # a kernel, how often it ran and its microseconds, in all steps


def listed(seen: Iterable[Seen], *, steps: int = STEPS, least: float) -> Iterator[str]:
    """Lines of a table of kernels in one step, those under `least` microseconds as one."""
    rows = sorted(((took / steps, runs / steps, name) for name, runs, took in seen if took), reverse=True)
    yield f"{sum(took for took, *_ in rows):9.1f} us  all kernels"
    for took, runs, name in rows:
        if took >= least:
            yield f"{took:9.1f} us  {runs:4.0f} x  {name[:NAME]}"
    few = [row for row in rows if row[0] < least]
    if few:
        yield f"{sum(took for took, *_ in few):9.1f} us  {len(few)} kernels under {least:g} us"


def kernels_of(task: str, attention: str) -> list[Seen]:
    """Every kernel of some steps, replayed as one graph each."""
    replay = captured(training_step(task, attention))
    replay()
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        for _ in range(STEPS):
            replay()
        torch.cuda.synchronize()
    return [(each.key, each.count, each.self_device_time_total) for each in profile.key_averages()]


def main() -> int:
    """2 where there is no such task, attention or device."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("task", help=", ".join(TASKS))
    parser.add_argument("attention", help=", ".join(ATTENTIONS))
    parser.add_argument(
        "--least", type=float, default=10.0, help="microseconds of a kernel with its own line"
    )
    asked = parser.parse_args()
    try:
        for what, name, known in (("task", asked.task, TASKS), ("attention", asked.attention, ATTENTIONS)):
            if name not in known:
                raise unknown("kernels", what, name, list(known))
        if not torch.cuda.is_available():
            raise KernelheadError("kernels: no CUDA device")
    except KernelheadError as error:
        print(error, file=sys.stderr)
        return 2
    print("\n".join(listed(kernels_of(asked.task, asked.attention), least=asked.least)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
