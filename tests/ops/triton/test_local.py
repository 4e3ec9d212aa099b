"""Kernels that mix neighbours: in the interpreter everywhere, compiled where there is a GPU."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from kernelhead.ops import local_mix
from kernelhead.ops.backends import local_backend
from tests.inputs import points

pytest.importorskip("triton", reason="the extra gpu is not installed")

from tests.ops.triton.local_cases import CASES, Case, check

ROOT = Path(__file__).parents[3]
gpu = pytest.mark.gpu
DTYPES = [torch.float32, torch.float16, torch.bfloat16]


def test_the_interpreter_runs_the_same_kernels() -> None:
    # It reads the variable when a kernel is defined, so it needs a process of its own.
    command = [sys.executable, "-m", "pytest", "-q", "tests/ops/triton/interpreted_local.py"]
    made = subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert made.returncode == 0, made.stdout[-3000:] + made.stderr[-1000:]
    assert f"{2 * len(CASES) + 2} passed" in made.stdout


@gpu
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", CASES)
def test_kernels(name: str, dtype: torch.dtype) -> None:
    check(CASES[name], dtype, "cuda")


@gpu
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("taps", [15, 33, 64])
def test_many_taps(taps: int, dtype: torch.dtype) -> None:
    check(Case(batch=3, n=600, width=100, taps=taps, dilation=2), dtype, "cuda")


@gpu
def test_the_backend_on_the_gpu() -> None:
    x, weight = torch.zeros(1, 3, 4, device="cuda"), torch.zeros(3, 4)
    assert local_backend(x, weight) == "triton"
    assert local_backend(x.double(), weight) == local_backend(x, torch.zeros(65, 4)) == "eager"


@gpu
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
def test_compiled() -> None:
    torch._dynamo.reset()
    tensors = [points(2, 40, 16, dtype=torch.float32), points(5, 16, seed=1, dtype=torch.float32)]
    held = [each.cuda().requires_grad_() for each in (*tensors, points(16, seed=2, dtype=torch.float32))]

    def run(*sides: torch.Tensor) -> torch.Tensor:
        return local_mix(*sides, dilation=3).square().sum()

    compiled = torch.compile(run, fullgraph=True)
    results = [torch.autograd.grad(each(*held), held) for each in (compiled, run)]
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other)
