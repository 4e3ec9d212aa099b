"""What an installation has and whether it computes what it should; needs none of the extras."""

import math
import platform
import re
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, requires, version
from typing import Any

from kernelhead import __version__

WANTED = re.compile(r"^([\w.-]+).*?extra == ['\"](\w+)['\"]")
BOUND = 1e-10  # relative, in float64
BOUND_32 = 1e-4  # relative, a kernel in float32 beside float64


@dataclass(frozen=True)
class Check:
    """One computation beside another way to the same numbers."""

    name: str
    passed: bool
    seconds: float
    error: float | None
    said: str


def versions() -> dict[str, str | None]:
    """Versions of what kernelhead itself stands on; None for what is not there.

    Example:
        >>> versions()["kernelhead"] == __version__
        True
    """
    packages = {name: installed(name) for name in ("torch", "numpy", "scikit-learn")}
    system = f"{platform.system()} {platform.machine()}"
    return {"kernelhead": __version__, "Python": platform.python_version(), "system": system, **packages}


def installed(package: str) -> str | None:
    """The version of a package, or None.

    Example:
        >>> installed("no-such-package") is None
        True
    """
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def extras() -> dict[str, dict[str, str | None]]:
    """The packages of every extra with their versions, as the installed package states them.

    Example:
        >>> sorted(extras()["onnx"])
        ['onnx', 'onnxruntime', 'onnxscript']
    """
    found: dict[str, dict[str, str | None]] = {}
    stated = (requires("kernelhead") or []) if installed("kernelhead") else []  # not of a bare source tree
    for line in stated:
        if match := WANTED.match(line):
            package, extra = match.groups()
            found.setdefault(extra, {})[package] = installed(package)
    return found


def devices() -> list[str]:
    """What torch can compute on, in words."""
    import torch

    cards = (torch.cuda.get_device_properties(place) for place in range(torch.cuda.device_count()))
    cuda = [
        f"cuda:{place}, {card.name}, {card.total_memory / 2**30:.0f} GiB" for place, card in enumerate(cards)
    ]
    return [f"cpu, {torch.get_num_threads()} threads", *cuda]


def backends() -> dict[str, str]:
    """Whether each way to compute the operations serves here, and else why not."""
    import torch

    from kernelhead.ops.backends import HAS_TRITON

    if not HAS_TRITON:
        why = 'no: needs triton; run: pip install "kernelhead[gpu]"'
    else:
        why = "yes" if torch.cuda.is_available() else "no: torch sees no CUDA device"
    return {"eager": "yes", "triton": why}


def self_test() -> list[Check]:
    """Compute a few things in two ways; what raises has failed too.

    Example:
        >>> all(check.passed for check in self_test())
        True
    """
    ways: dict[str, Callable[[], tuple[float, float]]] = {
        "kernel SVD beside torch.linalg.svd": _kernel_svd,
        "primal layer beside loops": _primal_layer,
    }
    with suppress(Exception):  # where torch itself does not load, the other checks say so
        if backends()["triton"] == "yes":
            ways["Triton kernel beside float64"] = _triton
    return [_checked(name, way) for name, way in ways.items()]


def _checked(name: str, way: Callable[[], tuple[float, float]]) -> Check:
    started = time.perf_counter()
    try:
        error, bound = way()
    except Exception as failure:
        words = " ".join(f"{type(failure).__name__}: {failure}".split())
        return Check(name, False, time.perf_counter() - started, None, words)
    passed = error <= bound  # never for NaN
    said = f"relative error {error:.1e}, at most {bound:.0e}"
    return Check(name, passed, time.perf_counter() - started, error, said)


def _kernel_svd() -> tuple[float, float]:
    """Singular values from features, and of the matrix that they are features of."""
    import torch

    from kernelhead.decomposition import ksvd
    from kernelhead.rng import generator

    draw = generator(0)
    left, right = (torch.randn(rows, 7, dtype=torch.float64, generator=draw) for rows in (40, 30))
    expected = torch.linalg.svd(left @ right.mT).S[:7]
    return float((ksvd(left, right).values - expected).abs().max() / expected[0]), BOUND


def _primal_layer() -> tuple[float, float]:
    """A layer, and the same numbers by loops over plain numbers."""
    import torch

    from kernelhead.nn import PrimalAttention
    from kernelhead.rng import seeded

    with seeded(0):
        layer = PrimalAttention(8, heads=2, rank=3, landmarks=3).double()
        x = torch.randn(1, 7, 8, dtype=torch.float64)
    made = layer(x)[0].tolist()
    weights = {name: tensor.tolist() for name, tensor in layer.state_dict().items()}
    expected = _looped(x[0].tolist(), weights, places=(0, 3, 6))
    largest = max(abs(value) for row in expected for value in row)
    pairs = (pair for rows in zip(made, expected, strict=True) for pair in zip(*rows, strict=True))
    return max(abs(one - other) for one, other in pairs) / largest, BOUND


def _looped(x: list[list[float]], weights: dict[str, Any], places: tuple[int, ...]) -> list[list[float]]:
    """Primal-Attention of 2 heads of 4 features with weights from the points at `places`."""

    def linear(name: str, row: list[float]) -> list[float]:
        matrix, bias = weights[f"{name}.weight"], weights[f"{name}.bias"]
        return [_dot(each, row) + shift for each, shift in zip(matrix, bias, strict=True)]

    def scores(side: str, head: int, row: list[float]) -> list[float]:
        own = row[4 * head : 4 * head + 4]
        length = math.sqrt(_dot(own, own))
        made = [0.0] * 3
        for place, weight in zip(places, weights[side][head], strict=True):
            near = _dot(own, x[place][4 * head : 4 * head + 4]) / length
            made = [score + near * each for score, each in zip(made, weight, strict=True)]
        return made

    made = []
    for point in x:
        query, key = linear("query", point), linear("key", point)
        joined = []
        for head in range(2):
            joined += linear("join", [*scores("left", head, query), *scores("right", head, key)])
        made.append(linear("out", joined))
    return made


def _dot(one: list[float], other: list[float]) -> float:
    return sum(a * b for a, b in zip(one, other, strict=True))


def _triton() -> tuple[float, float]:
    """The layer on the device, and in float64 on the CPU."""
    import torch

    from kernelhead.nn import PrimalAttention
    from kernelhead.rng import seeded

    with seeded(0):
        layer, x = PrimalAttention(32, heads=2, rank=4, landmarks=8), torch.randn(2, 50, 32)
    with torch.no_grad():
        made = layer.cuda()(x.cuda()).double().cpu()
        expected = layer.cpu().double()(x.double())
    return float((made - expected).abs().max() / expected.abs().max()), BOUND_32
