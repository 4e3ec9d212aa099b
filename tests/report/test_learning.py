"""Curves of training: J from its parts, gaps where something is not known."""

import json
import re
from html import unescape
from typing import Any

from kernelhead.report.learning import PARTS, learning_charts, objective_charts


def lines_of(svg: str) -> list[dict[str, Any]]:
    found = re.search(r'data-chart="([^"]*)"', svg)
    assert found
    return list(json.loads(unescape(found[1]))["lines"])


def rows(*parts: tuple[float | None, float, float]) -> list[dict[str, Any]]:
    return [
        {"epoch": epoch, **dict(zip(PARTS, each, strict=True))} for epoch, each in enumerate(parts, start=1)
    ]


def test_j_is_both_parts_less_the_trace() -> None:
    drawn = objective_charts([rows((2.0, 1.0, 2.5), (None, 1.0, 2.5), (1.0, 1.0, 2.0)), [{"epoch": 1}]])
    assert [caption.split(":")[0] for _, caption in drawn][:3] == ["J", "Left part", "Right part"]
    assert len(drawn) == 4
    [line] = lines_of(drawn[0][0])
    assert (line["run"], line["x"], line["y"]) == (0, [1, 2, 3], [0.5, None, 0])


def test_a_penalty_alone_is_drawn_alone() -> None:
    [(svg, caption)] = objective_charts([[{"epoch": 1, "penalty": 0.25}]])
    assert caption.startswith("Penalty: mean of J squared")
    assert lines_of(svg)[0]["y"] == [0.25]


def test_curves_say_of_what_they_are() -> None:
    made = [
        {"epoch": 1, "train_loss": 0.5, "valid_loss": 0.75, "valid_accuracy": 0.9, "train_accuracy": None}
    ]
    loss, accuracy = (lines_of(svg) for svg, _ in learning_charts([made]))
    assert [(line["name"], line["y"]) for line in loss] == [("training", [0.5]), ("validation", [0.75])]
    assert [(line["name"], line["y"]) for line in accuracy] == [("validation", [90])]
