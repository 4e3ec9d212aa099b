"""How near is Primal-Attention on the GPU to the memory floor, and to its rivals, in one run?

Run: python -m benchmarks.primal_gpu --out performance.json; then python -m benchmarks.page.
"""

import argparse
import json
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from benchmarks.harness import copy_speed, forward_backward, gate, machine, milliseconds, peak_mib
from kernelhead.kernels import Cosine
from kernelhead.models import SequenceClassifier
from kernelhead.nn import PrimalAttention, SoftmaxAttention, ksvd_penalty, record
from kernelhead.ops import linear_attention, primal_attention, primal_attention_moments
from kernelhead.ops.eager import primal as eager

TOKENS, HEADS, HEAD, RANK = 262_144, 8, 64, 32
LENGTHS = (1024, 16_384, 65_536)
COSINE = Cosine()
# The best of the fused kernels, in torch's own order of choice on this chip.
FUSED = [SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION]


def core(n: int, speed: float) -> list[dict[str, Any]]:
    """The cores of all rivals on the same queries, keys and values."""
    batch = TOKENS // n
    source = torch.Generator("cuda").manual_seed(0)

    def drawn(*shape: int) -> Tensor:
        return torch.randn(shape, device="cuda", generator=source).bfloat16().requires_grad_()

    query, key, value = (drawn(batch, HEADS, n, HEAD) for _ in range(3))
    left, right = (drawn(batch, HEADS, HEAD, RANK) for _ in range(2))
    primal = [query, key, left, right, drawn(HEAD, 2 * RANK), drawn(HEAD)]

    def eagerly(*inputs: Tensor) -> tuple[Tensor, ...]:
        query, key, left, right = inputs[:4]
        output = eager.primal_attention(*inputs, COSINE, None)
        left_moments = eager.score_moments(COSINE.features(query), left, None)
        return output, left_moments, eager.score_moments(COSINE.features(key), right, None)

    compiled = torch.compile(eagerly, dynamic=False)
    linear = torch.compile(lambda *inputs: linear_attention(*inputs), dynamic=False)
    others = [query, key, value]
    rivals: dict[str, tuple[Callable[..., Any], list[Tensor]]] = {
        "primal, ours": (primal_attention, primal),
        "primal, ours, with J": (primal_attention_moments, primal),
        "primal, torch.compile, with J": (compiled, primal),
        "linear (elu), torch.compile": (linear, others),
        "SDPA (cuDNN or flash)": (scaled_dot_product_attention, others),
    }
    one = query.numel() * query.element_size()
    rows = []
    for name, (run, inputs) in rivals.items():
        moved = 3 if name.startswith("primal") else 4
        with sdpa_kernel(FUSED), torch.no_grad():
            forward = milliseconds(lambda run=run, inputs=inputs: run(*inputs))
        with sdpa_kernel(FUSED):
            both = forward_backward(lambda run=run, inputs=inputs: run(*inputs), inputs)
            rows.append(
                {
                    "n": n,
                    "rival": name,
                    "forward": forward,
                    "both": milliseconds(both, rounds=3),
                    "both_peak_over_q": peak_mib(both) * 2**20 / one,
                    "forward_floor_ms": moved * one / speed * 1e3,
                    "both_floor_ms": 8 * one / speed * 1e3 if moved == 3 else None,
                }
            )
    return rows


def layers(n: int) -> list[dict[str, Any]]:
    """Whole layers of width 512, forward."""
    x = torch.randn(TOKENS // n, n, 512, device="cuda", dtype=torch.bfloat16)
    rows = []
    for name, module in {
        "primal": PrimalAttention(512, heads=HEADS, rank=RANK, landmarks=10 * RANK),
        "SDPA": SoftmaxAttention(512, heads=HEADS),
    }.items():
        module = module.to("cuda", torch.bfloat16).eval()
        with torch.no_grad(), sdpa_kernel(FUSED):
            rows.append(
                {"n": n, "layer": name, "forward": milliseconds(lambda module=module: module(x), rounds=3)}
            )
    return rows


def million() -> dict[str, Any]:
    """One training step of a primal layer on one sequence of 1,048,576 points."""
    module = PrimalAttention(512, heads=HEADS, rank=RANK, landmarks=10 * RANK).to("cuda", torch.bfloat16)
    x = torch.randn(1, 2**20, 512, device="cuda", dtype=torch.bfloat16)

    def step() -> None:
        module.zero_grad()
        with record(module) as tape:
            (module(x).float().square().mean() + ksvd_penalty(tape)).backward()

    return {"n": 2**20, "step": milliseconds(step, rounds=3, graph=False), "peak_gib": peak_mib(step) / 1024}


ATTENTIONS = ("primal", "softmax", "linear", "none")
TASKS = {"Image": (256, 1024, 256, 10, 30), "ListOps": (32, 2048, 32, 10, 20), "Text": (32, 4096, 512, 2, 20)}


class Nothing(nn.Module):
    """No attention at all: what the rest of the model costs."""

    width = 64

    def forward(self, x: Tensor, *, mask: Tensor | None = None) -> Tensor:
        return x


def long_range(task: str, attention: str) -> dict[str, Any]:
    """A training step of the paper's long-range model, captured as a graph: two layers of width 64."""
    batch, n, vocabulary, classes, rank = TASKS[task]
    model = SequenceClassifier(
        classes,
        vocabulary=vocabulary,
        width=64,
        heads=2,
        inner=128,
        attention="primal" if attention == "none" else attention,
        rank=rank,
        landmarks=10 * rank,
        position="learned",
        longest=n,
        dropout=0.1,
        init="published",
    ).cuda()
    if attention == "none":
        for block in model.blocks:
            block.attention = Nothing()
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True, capturable=True)
    x = torch.randint(1, vocabulary, (batch, n), device="cuda")
    target = torch.randint(classes, (batch,), device="cuda")
    run = torch.compile(model, dynamic=False)

    def step() -> None:
        optimiser.zero_grad(set_to_none=True)
        with torch.autocast("cuda", torch.bfloat16):
            if attention == "primal":
                with record(model) as tape:
                    made = run(x)
                loss = nn.functional.cross_entropy(made, target) + 0.1 * ksvd_penalty(tape, reduction="batch")
            else:
                loss = nn.functional.cross_entropy(run(x), target)
        loss.backward()
        optimiser.step()

    for _ in range(3):
        step()
    peak = peak_mib(step) / 1024
    return {"task": task, "attention": attention, "step": milliseconds(step, rounds=3), "peak_gib": peak}


def _compile(task: str, attention: str) -> None:
    long_range(task, attention)


def warm() -> None:
    """Compile everything once, in processes side by side; the timed run finds it in the cache."""
    jobs = [(task, attention) for task in TASKS for attention in ATTENTIONS]
    with ProcessPoolExecutor(len(jobs), mp_context=get_context("spawn")) as pool:
        for done in [pool.submit(_compile, *job) for job in jobs]:
            done.result()


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("performance.json"))
    parser.add_argument(
        "--no-gate", action="store_true", help="skip the tests, for a trial; figures are marked"
    )
    parser.add_argument("--warm", action="store_true", help="only compile, for the cache")
    parser.add_argument("--parts", default="core,layers,long", help="what to measure")
    chosen = parser.parse_args()
    if chosen.warm:
        warm()
        return
    if not chosen.no_gate:
        gate("tests/ops/triton")
    speed = copy_speed()
    made: dict[str, Any] = {"machine": machine(), "gated": not chosen.no_gate, "copy_bytes_a_second": speed}

    def write() -> None:
        chosen.out.write_text(json.dumps(made, indent=1) + "\n", encoding="utf-8")

    parts = chosen.parts.split(",")
    if "core" in parts:
        made["core"] = []
        for n in LENGTHS:
            made["core"] += core(n, speed)
            write()
            for row in made["core"][-5:]:
                times = [
                    row["forward"]["ms"],
                    row["both"]["ms"],
                    row["forward"]["ms"] / row["forward_floor_ms"],
                ]
                print(n, row["rival"], *(round(each, 4) for each in (*times, row["both_peak_over_q"])))
    if "layers" in parts:
        made["layers"] = [row for n in (1024, 65_536) for row in layers(n)]
        made["million"] = million()
        write()
        print(
            [(row["n"], row["layer"], round(row["forward"]["ms"], 3)) for row in made["layers"]],
            made["million"],
        )
    if "long" in parts:
        made["long_range"] = []
        for task in TASKS:
            for attention in ATTENTIONS:
                made["long_range"].append(long_range(task, attention))
                row = made["long_range"][-1]
                print(task, attention, round(row["step"]["ms"], 3), round(row["peak_gib"], 3))
                write()


if __name__ == "__main__":
    main()
