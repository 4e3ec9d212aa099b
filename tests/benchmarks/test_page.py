"""The page of the figures: goals with pass and missed, what was left out, and the plot."""

from pathlib import Path
from typing import Any

import pytest

from benchmarks.page import judged, performance, write
from kernelhead.records import write_json


def time(ms: float) -> dict[str, float]:
    return {"ms": ms, "lowest": ms, "highest": 1.1 * ms}


def record(rows: list[dict[str, Any]], **changes: Any) -> dict[str, Any]:
    return {
        "machine": {"device": "Some GPU"},
        "versions": {"torch": "2.11", "python": "3.12"},
        "date": "2026-01-02",
        "gated": True,
        "copy_bytes_a_second": 4e12,
        "rows": [{"status": "ok", **row} for row in rows],
        **changes,
    }


def core(n: int, rival: str, forward: float, both: float, peak: float) -> dict[str, Any]:
    times = {"forward": time(forward), "forward_floor_ms": 1.0, "both": time(both), "both_floor_ms": 2.0}
    peaks = {"peak_mib": 10.0 * peak, "peak_over_q": peak, "gradients_over_q": 2.0}
    return {"n": n, "rival": rival, "points": 4 * n, **times, **peaks}


REFUSED = {"n": 64, "rival": "SDPA, cuDNN", "status": "RuntimeError: refused", "points": 256}
RECORDS: dict[str, dict[str, Any]] = {
    "core": record(
        [
            core(64, "primal, ours", 1.1, 4.0, 3.0),
            core(64, "primal, ours, with J", 1.3, 3.3, 5.5),
            core(128, "primal, ours", 1.2, 3.0, 3.0),
            {**REFUSED, "forward": time(7.0), "forward_floor_ms": 1.0},
        ]
    ),
    "layer": record(
        [
            {"n": 1024, "layer": "primal", "what": "forward", "time": time(1.0)},
            {"n": 1024, "layer": "SDPA, flash", "what": "forward", "time": time(2.5)},
            {"n": 1024, "layer": "SDPA, cuDNN", "what": "forward", "time": time(1.9)},
            {"n": 4096, "layer": "primal", "what": "step", "time": time(18.0), "peak_gib": 14.0},
        ],
        gated=False,
    ),
    "long_range": record(
        [
            {"task": "Image", "attention": "primal", "time": time(5.0), "peak_gib": 1.4},
            {"task": "Image", "attention": "linear", "time": time(6.0), "peak_gib": 2.0},
        ]
    ),
    "released": {
        "source": "steps of the released code",
        "rows": [{"task": "Image", "attention": "primal", "ms": 26.0, "peak_gib": 2.0}],
    },
    "rpc": record(
        [
            {"n": 64, "rival": "RPC, ours", "backend": "flash", "forward": time(1.2), "both": time(3.0)},
            {"n": 64, "rival": "SDPA calls", "backend": "flash", "forward": time(1.0), "both": time(2.0)},
        ]
    ),
    "rows": record(
        [
            {"rows": 1000, "what": "step", "attention": "softmax", "time": time(3000.0), "peak_mib": 12.4},
            {"rows": 1000, "what": "step", "attention": "self", "time": time(1500.0), "peak_mib": 8.0},
        ]
    ),
    "causal": record([core(64, "linear, fla", 1.0, 2.0, 4.0)]),
    "local": record(
        [
            {**core(64, "ours", 1.0, 3.0, 1.0), "dilation": 16},
            {**core(64, "conv1d, points as rows", 4.0, 2.0, 1.0), "dilation": 16},
            {**core(64, "shifted sums", 2.0, 6.0, 1.0), "dilation": 16},
        ]
    ),
    "feedforward": record(
        [
            {**core(64, "ours", 1.0, 2.0, 1.0), "inner": 64, "dropout": 0.1},
            {**core(64, "torch.compile", 2.0, 8.0, 1.0), "inner": 64, "dropout": 0.1},
        ]
    ),
    "maps": record(
        [
            {**core(64, "ours", 1.0, 2.0, 1.0), "maps": "three of 64"},
            {**core(64, "torch.compile", 2.0, 8.0, 1.0), "maps": "three of 64"},
        ]
    ),
    "lookup": record(
        [
            {**core(64, "ours", 1.0, 1.0, 1.0), "same": 0.9},
            {**core(64, "torch", 1.0, 20.0, 1.0), "same": 0.9},
        ]
    ),
    "padded": record(
        [
            {**core(64, "ours, torch.compile", 1.0, 2.0, 1.0), "share": 0.5},
            {**core(64, "mask, cuDNN", 2.0, 8.0, 1.0), "share": 0.5},
        ]
    ),
    "cpu": record([{"n": 8, "ratio": 1.7, "lowest": 1.1, "highest": 2.4, "ours_per_point": 2.0}]),
    "long_range_cpu": record(
        [
            {**step, "task": "Text", "lowest": 1.0, "highest": 3.0, "batch": 2}
            for step in (
                {"attention": "primal", "ratio": 3.0, "peak_mib": 70.0, "compiled": 2.0},
                {"attention": "softmax", "ratio": 1.0, "peak_mib": 80.4, "compiled": 0.9},
                {"attention": "linear", "ratio": 4.0, "peak_mib": 90.0, "compiled": 1.5},
                {"attention": "none", "ratio": 9.0, "peak_mib": 20.0, "compiled": 1.1},
            )
        ]
    ),
    "softmax_cpu": record([{"n": 64, "width": 16, "ratio": 3.14, "lowest": 2.0, "highest": 4.04}]),
    "local_cpu": record(
        [{"n": 1024, "dilation": 8, "rival": "conv1d", "ratio": 0.9, "lowest": 0.8, "highest": 1.5}]
    ),
    "ksvd": record(
        [
            {
                "what": "softmax",
                "n": 16,
                "seconds": 1.0,
                "largest_tensor_over_n2": 0.5,
                "sigma": [3.0, 2.0, 1.0],
                "residual": 1e-3,
            }
        ]
    ),
}


@pytest.mark.parametrize(
    "line",
    [
        "2026-01-02, Some GPU, torch 2.11, after green tests;",
        "2026-01-02, Some GPU, torch 2.11, **ungated**: no tests ran before these figures;",
        "Rounds of one figure lie within 10% of each other.",
        "| 64 | primal, ours | 1.100 | 1.10 (at most 1.15: pass) | 4.000 | 2.00 | 1.00 (at most 3: pass) |",
        "| 64 | primal, ours, with J | 1.300 | 1.30 | 3.300 | 1.65 (at most 1.6: missed) "
        "| 3.50 (at most 3: missed) |",
        "| 64 | SDPA, cuDNN | 7.000 | 7.00 | - | - | - |",
        "- 64, SDPA, cuDNN: RuntimeError: refused",
        "| 1,024 | SDPA, flash | 2.500 | 2.5 (at least 2: pass) |",
        "| 1,024 | SDPA, cuDNN | 1.900 | 1.9 (at least 2: missed) |",
        "4,096 points takes 18.0 ms and 14.0 GiB.",
        "| Image | primal | 5.000 | 1.40 | 26.0 | 2.00 | 5.2 (at least 5: pass) | 0.70 (at most 0.5: missed) "
        "| 0.83 (at most 1: pass) |",
        "| Image | linear | 6.000 | 2.00 | - | - |  |  |  |",
        "| 64 | RPC, ours | flash | 1.200 | 1.20 (at most 1.15: missed) | 3.000 | 1.50 |",
        "| 64 | linear, fla | 1.000 | 1.00 | 2.000 | 1.00 | 2.00 |",
        "| 64 | 16 | ours | 1.000 | 1.00 | 0.50 (at most 1: pass) | 3.000 | 1.50 "
        "| 1.50 (at most 1: missed) |",
        "| 64 | 16 | shifted sums | 2.000 | 2.00 |  | 6.000 | 3.00 |  |",
        "| 64 | 0.1 | ours | 1.000 | 1.00 | 0.50 (at most 1: pass) | 2.000 | 1.00 | 0.25 (at most 1: pass) |",
        "| 90% | ours | 1.000 | 0.50 | 0.05 (at most 1: pass) |",
        "| 90% | torch | 20.000 | 10.00 |  |",
        "| 8 | 1.7 (at least 1: pass) | 1.1 to 2.4 | 1.00 |",
        "are 2 (Text); primal layers have their KSVD term. Memory is of tensors beyond weights and state.",
        "| Text | primal | 3.00 | 1.00 to 3.00 | 2.00 | 0.50 (at least 1: missed) | 70 |",
        "| Text | softmax | 1.00 | 1.00 to 3.00 | 0.90 |  | 80 |",
        "| 64 | 16 | 3.1 (at least 1: pass) | 2.0 to 4.0 |",
        "| 1,024 | 8 | conv1d | 0.9 (at least 1: missed) | 0.8 to 1.5 |",
        "| 1,000 | step | softmax | 3 | 2.0 | 12 |",
    ],
)
def test_the_page_has_the_line(line: str) -> None:
    assert line in performance(RECORDS).splitlines()


def test_a_goal_that_is_just_reached_passes() -> None:
    assert judged(1.15, 1.15) == "1.15 (at most 1.15: pass)"
    assert judged(2.0, 2.0, least=True) == "2.00 (at least 2: pass)"


def test_pages_and_plot_are_written_and_the_same_twice(tmp_path: Path) -> None:
    for name, made in RECORDS.items():
        write_json(tmp_path / "performance" / f"{name}.json", made)
    first = {path.name: path.read_bytes() for path in write(tmp_path / "performance")}
    assert {*first} == {"performance.md", "performance.svg", "measured.md"}
    assert first == {path.name: path.read_bytes() for path in write(tmp_path / "performance")}
    assert b"<svg" in first["performance.svg"]
    assert b"primal, ours, with J" in first["performance.svg"]
    assert b"Date" not in first["performance.svg"]
    assert b"| 16 | 1.0 | 0.5000 | 3, 2, 1 | 1.0e-03 | not computed |" in first["measured.md"]


def test_a_page_of_nothing_has_no_table() -> None:
    assert "|" not in performance({})
