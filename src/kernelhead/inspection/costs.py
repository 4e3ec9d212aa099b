"""What a softmax core and a primal core cost at one shape: counted, and measured on this device."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import median
from time import perf_counter
from typing import Any
from weakref import finalize

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from kernelhead.nn.cores import core_of
from kernelhead.nn.hosts import Sides
from kernelhead.rng import generator, seeded


@dataclass(frozen=True)
class Cost:
    """What a core costs in one forward call on all cases.

    Attributes:
        multiply_adds: of its products of matrices.
        held: bytes between its inputs and its output: the pattern, unless a fused kernel makes it piece
            by piece, or the scores of both sides.
        seconds: median of the repeats; None where it was not measured.
        peak: most bytes of what it makes alive at once, its output included; None where not measured. On
            a CPU tensors are counted, and not what an operator takes for itself.
    """

    multiply_adds: int
    held: int
    seconds: float | None = None
    peak: int | None = None


class Costs:
    """Costs of both cores, each shape measured once.

    Args:
        landmarks: of the primal core, or None.
        repeats: of each measurement; 0 measures nothing.

    Example:
        >>> x = torch.zeros(1, 2, 6, 4)
        >>> Costs(None, 0).of([Sides(x, x, x, None, False, 0.5)], 1)
        (Cost(multiply_adds=576, held=288, ...), Cost(multiply_adds=192, held=96, ...))
    """

    def __init__(self, landmarks: int | None, repeats: int) -> None:
        self.landmarks, self.repeats = landmarks, repeats
        self.known: dict[tuple[object, ...], Cost] = {}

    def of(self, cases: Sequence[Sides], rank: int | None) -> tuple[Cost, Cost | None]:
        """The softmax core and a primal one of a rank, if any, on a batch as long as its longest case."""
        longest = max(cases, key=lambda case: case.query.shape[-2])
        return self._of(longest, len(cases), None), None if rank is None else self._of(
            longest, len(cases), rank
        )

    def _of(self, case: Sides, batch: int, rank: int | None) -> Cost:
        key = (
            batch,
            case.query.shape,
            case.value.shape,
            rank,
            case.causal,
            case.query.dtype,
            case.query.device,
        )
        if key not in self.known:
            cost = (
                _softmax_cost(case, batch)
                if rank is None
                else _primal_cost(case, batch, rank, self.landmarks)
            )
            if self.repeats:
                seconds, peak = self._measured(case, batch, rank)
                cost = replace(cost, seconds=seconds, peak=peak)
            self.known[key] = cost
        return self.known[key]

    def _measured(self, case: Sides, batch: int, rank: int | None) -> tuple[float, int]:
        """Median time and peak memory of a core on random numbers of the case's shape."""
        _, heads, _, head = case.query.shape
        sides = [
            torch.randn(batch, *side.shape[1:], generator=generator(0, place)).to(side)
            for place, side in enumerate((case.query, case.key, case.value))
        ]
        with seeded(0):
            core: nn.Module = (
                core_of("softmax", heads=heads, head=head)
                if rank is None
                else core_of("primal", heads=heads, head=head, rank=rank, landmarks=self.landmarks)
            )
        core = core.to(sides[0]).eval()
        with torch.no_grad():
            return _seconds_and_peak(lambda: core(*sides, causal=case.causal), self.repeats, sides[0].device)


def device_name(device: torch.device) -> str:
    """Where something was measured, in words.

    Example:
        >>> device_name(torch.device("cpu"))
        'cpu, threads: ...'
    """
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{device.type}, threads: {torch.get_num_threads()}"


def _softmax_cost(case: Sides, batch: int) -> Cost:
    (_, h, n, d), (m, e) = case.query.shape, case.value.shape[-2:]
    pairs = n * (m - n) + n * (n + 1) // 2 if case.causal and n <= m else n * m
    return Cost(batch * h * pairs * (d + e), batch * h * n * m * case.query.element_size())


def _primal_cost(case: Sides, batch: int, rank: int, landmarks: int | None) -> Cost:
    """Both scores, what they become, and weights from landmarks, which a causal core makes at every point."""
    (_, h, n, d), e = case.query.shape, case.value.shape[-1]
    weights = 0 if landmarks is None else 2 * (n if case.causal else landmarks) * d * rank
    return Cost(
        batch * h * (2 * n * rank * (d + e) + weights), batch * h * 2 * n * rank * case.query.element_size()
    )


def _seconds_and_peak(run: Callable[[], object], repeats: int, device: torch.device) -> tuple[float, int]:
    run()
    times = []
    for _ in range(repeats):
        _wait(device)
        start = perf_counter()
        run()
        _wait(device)
        times.append(perf_counter() - start)
    if device.type != "cuda":
        with _Held() as held:
            run()
        return median(times), held.peak
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    run()
    _wait(device)
    return median(times), torch.cuda.max_memory_allocated(device) - before


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


class _Held(TorchDispatchMode):
    """Counts the bytes of tensors that operators make inside the block, while they are alive."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.peak = 0
        self.users: dict[int, int] = {}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run the operator and count what it made."""
        given = {_place(each) for each in tree_leaves((args, kwargs)) if isinstance(each, Tensor)}
        made = func(*args, **(kwargs or {}))
        for each in tree_leaves(made):
            # A view of what was there before the block is not made here.
            if isinstance(each, Tensor) and (_place(each) in self.users or _place(each) not in given):
                self._hold(each)
        return made

    def _hold(self, tensor: Tensor) -> None:
        place, size = _place(tensor), tensor.untyped_storage().nbytes()
        if place not in self.users:
            self.users[place] = 0
            self.now += size
            self.peak = max(self.peak, self.now)
        self.users[place] += 1
        finalize(tensor, self._free, place, size)

    def _free(self, place: int, size: int) -> None:
        self.users[place] -= 1
        if not self.users[place]:
            del self.users[place]
            self.now -= size


def _place(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()
