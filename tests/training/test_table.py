"""The page: means with their seeds, published figures marked, goals judged by rule, curves drawn."""

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from kernelhead.errors import MissingExtra
from kernelhead.training import Claim, Goal, Page, markdown
from kernelhead.training.table import Shares, draw, write_page

PAGE = Page(
    title="Tiny",
    about="Two models.",
    figures={"clean": "score", "paper": "best_score"},
    labels={"clean": "Validation chooses.", "paper": "The test part chooses."},
    variants={"new": "New", "old": "Old"},
    published={"a": {"new": 60.0}, "b": {"new": 50.0}, "c": {"new": 100.0}},
    published_by="best epoch",
    doubtful={"c": "trained on its test part."},
    goals=(Goal("new", "new", published=True), Goal("new", "old")),
    scale=100.0,
    unit=" %",
)


def row(data: str, variant: str, score: float, **changes: Any) -> dict[str, Any]:
    base = {"data": data, "variant": variant, "protocol": "clean", "seed": 0, "status": "done", "error": None}
    cost = {"parameters": 1234, "seconds": 2.0, "seconds_per_epoch": None, "peak_memory_mib": 99.0}
    return {**base, **cost, "figures": {"score": score}, "machine": {"device": "abacus"}, **changes}


ROWS = [
    row("a", "new", 0.62),
    row("a", "new", 0.60, seed=1),
    row("b", "new", 0.45),
    row("c", "new", 0.90),
    row("a", "old", 0.60),
    row("b", "old", 0.50),
]


def test_a_cell_has_its_mean_its_deviation_and_its_seeds() -> None:
    lines = markdown(PAGE, ROWS).splitlines()
    assert "| data set | New | Old | *New, published: best epoch* |" in lines
    assert "| a | 61.0 ± 1.4 (2) | 60.0 (1) | *60.0* |" in lines
    assert "| b | 45.0 (1) | 50.0 (1) | *50.0* |" in lines
    assert "| c | 90.0 (1) | - | *100.0†* |" in lines
    assert "† c: trained on its test part." in lines
    assert "| average of the 2 sets that every column has | 53.0 | 55.0 | *55.0* |" in lines
    assert "| a | New | 1,234 | 2.0 | - | 99 | abacus |" in lines


def test_who_shared_a_device_is_said() -> None:
    lines = markdown(PAGE, [row("a", "new", 0.6, together=3, workers=2), row("b", "new", 0.6, workers=4)])
    assert "| a | New | 1,234 | 2.0 | - | 99 | abacus, 3 in one process, 2 side by side |" in lines
    assert "| b | New | 1,234 | 2.0 | - | 99 | abacus, 4 side by side |" in lines


def test_costs_are_means_of_one_place() -> None:
    abacus, rule = {"device": "abacus"}, {"device": "slide rule"}
    places = [(abacus, 1, 2.0), (rule, 1, 8.0), (abacus, 1, 4.0), (abacus, 3, 9.0)]
    rows = [
        row("a", "new", 0.6, seed=seed, machine=machine, workers=workers, seconds=seconds)
        for seed, (machine, workers, seconds) in enumerate(places)
    ]
    costs = [line for line in markdown(PAGE, rows).splitlines() if "1,234" in line]
    assert costs == [
        "| a | New | 1,234 | 3.0 | - | 99 | abacus |",
        "| a | New | 1,234 | 9.0 | - | 99 | abacus, 3 side by side |",
        "| a | New | 1,234 | 8.0 | - | 99 | slide rule |",
    ]


def test_goals_are_judged_by_rule_and_doubtful_sets_left_out() -> None:
    lines = markdown(PAGE, ROWS).splitlines()
    assert (
        "- New against New as published (best epoch): missed by 2.0, 53.0 to 55.0 % on average over 2 sets; "
        "at least as good on 1, behind on b by 5.0." in lines
    )
    assert (
        "- New against Old of this ledger: missed by 2.0, 53.0 to 55.0 % on average over 2 sets; "
        "at least as good on 1, behind on b by 5.0." in lines
    )
    lower = markdown(replace(PAGE, higher=False), ROWS).splitlines()
    assert (
        "- New against Old of this ledger: met, 53.0 to 55.0 % on average over 2 sets; "
        "at least as good on 1, behind on a by 1.0." in lower
    )
    alone = markdown(PAGE, ROWS[:1]).splitlines()
    assert (
        "- New against New as published (best epoch): met, 62.0 to 60.0 % on average over 1 set; "
        "at least as good on 1." in alone
    )
    assert not any("Old of this ledger" in line for line in alone)


def test_protocols_stand_apart_and_say_what_they_are() -> None:
    chosen = [row("a", "new", 0.9, protocol="paper", figures={"best_score": 0.7})]
    page = markdown(PAGE, [*ROWS, *chosen])
    clean, paper = page.split("## paper")
    assert "Validation chooses." in clean
    assert "70.0" not in clean
    assert "The test part chooses." in paper
    assert "| a | 70.0 (1) | *60.0* |" in paper
    assert "## paper" not in markdown(PAGE, ROWS)


def test_failures_are_listed_and_count_for_nothing() -> None:
    failed = row("a", "old", 0.0, seed=7, status="failed", error="ValueError: no", figures={})
    page = markdown(PAGE, [*ROWS, failed])
    assert "## Failed\n\n- a, old, clean, seed 7: ValueError: no\n" in page
    assert "| 60.0 (1) |" in page


def test_a_variant_without_a_title_is_shown_by_its_name() -> None:
    assert "| data set | New | odd |" in markdown(
        replace(PAGE, published={}), [*ROWS[:1], row("a", "odd", 0.1)]
    )


def test_claims_are_judged_by_two_standard_errors() -> None:
    page = replace(
        PAGE,
        published={},
        goals=(),
        claims=(Claim("New is better", "new", "old"), Claim("Odd is better", "odd", "old")),
        beside={"rank": "effective rank"},
    )
    found = {
        "a": {"new": (0.60, 0.62), "old": (0.50, 0.52)},
        "b": {"new": (0.50, 0.52), "old": (0.60, 0.62)},
        "c": {"new": (0.50, 0.60), "old": (0.50, 0.58)},
        "d": {"new": (0.50,), "old": (0.10,)},
    }
    rows = [
        row(data, variant, score, seed=seed, figures={"score": score, "rank": 3.0})
        for data, sides in found.items()
        for variant, scores in sides.items()
        for seed, score in enumerate(scores)
    ]
    lines = markdown(page, rows).splitlines()
    assert "| variant | a | b | c | d |" in lines
    assert "| Old | 51.0 ± 1.4 (2) | 61.0 ± 1.4 (2) | 54.0 ± 5.7 (2) | 10.0 (1) |" in lines
    assert "| New is better | a | +10.0 | 2.8 | holds |" in lines
    assert "| New is better | b | -10.0 | 2.8 | does not hold |" in lines
    assert "| New is better | c | +1.0 | 12.8 | cannot be told |" in lines
    assert "| New is better | d | +40.0 | - | cannot be told: one seed |" in lines
    assert not any("Odd" in line for line in lines)
    assert "| a | New | 1,234 | 2.0 | - | 99 | 3.000 | abacus |" in lines
    lower = markdown(replace(page, higher=False), rows).splitlines()
    assert "| New is better | a | -10.0 | 2.8 | does not hold |" in lower


SHARES = Shares("spectrum", "Decay", "Shares of all.", {"old": "old way", "new": "new way"})
CURVED = [
    row("b", "new", 0.5, curves={"spectrum": [1.0]}),
    row("a", "new", 0.5, curves={"spectrum": [0.6, 0.3, 0.1]}),
    row("a", "new", 0.5, seed=1, curves={"spectrum": [0.4, 0.3, 0.3]}),
    row("a", "old", 0.5, curves={"spectrum": [0.5, 0.495]}),
    row("a", "old", 0.5, seed=1, curves={"spectrum": [0.25, 0.25]}),
    row("a", "odd", 0.5, curves={"spectrum": [1.0]}),
    row("a", "new", 0.5, seed=2, curves={"learned": [1.0]}),
    row("a", "new", 0.5, protocol="paper", curves={"spectrum": [1.0]}),
    row("a", "new", 0.5, seed=3, status="failed"),
    row("a", "new", 0.5, seed=4),
]


def test_components_are_counted_up_to_a_share() -> None:
    page = markdown(replace(PAGE, shares=(SHARES,)), CURVED)
    assert page.split("## Decay\n\n")[1].split("\n\n## Failed")[0].splitlines() == [
        "Shares of all.",
        "",
        "| data set | variant | held by the first, % | hold 50% | hold 90% | hold 99% |",
        "| --- | --- | ---: | ---: | ---: | ---: |",
        "| a | old way | 37.5 ± 17.7 (2) | 1.5 ± 0.7 (2) | more than 2 in 1 of 2 | more than 2 in 1 of 2 |",
        "| a | new way | 50.0 ± 14.1 (2) | 1.5 ± 0.7 (2) | 2.5 ± 0.7 (2) | 3.0 ± 0.0 (2) |",
        "| b | new way | 100.0 (1) | 1.0 (1) | 1.0 (1) | 1.0 (1) |",
    ]


def test_a_page_without_curves_has_no_section_for_them(tmp_path: Path) -> None:
    page = replace(PAGE, shares=(SHARES,))
    assert markdown(page, ROWS) == markdown(PAGE, ROWS)
    assert write_page(page, ROWS, tmp_path / "tiny.md") == [tmp_path / "tiny.md"]
    assert (tmp_path / "tiny.md").read_text() == markdown(PAGE, ROWS)


def test_a_figure_is_drawn_beside_the_page_and_again_the_same(tmp_path: Path) -> None:
    page, path = replace(PAGE, shares=(SHARES,)), tmp_path / "new" / "tiny.md"
    image = path.with_name("tiny_spectrum.svg")
    assert write_page(page, CURVED, path) == [path, image]
    assert "Shares of all.\n\n![Decay, cumulated](tiny_spectrum.svg)\n\n| data set |" in path.read_text()
    assert ElementTree.parse(image).getroot().tag.endswith("svg")
    words = image.read_text()
    assert all(f">{word}<" in words for word in ("a", "b", "old way", "new way", "cumulated share"))
    assert words.index(">old way<") < words.index(">new way<")
    assert draw(SHARES, CURVED, tmp_path / "again.svg")
    assert (tmp_path / "again.svg").read_bytes() == image.read_bytes()
    assert draw(SHARES, CURVED[:1], tmp_path / "one.svg")
    assert (tmp_path / "one.svg").read_bytes() != image.read_bytes()


def test_without_matplotlib_the_page_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(MissingExtra, match=r'draw: needs matplotlib, .* pip install "kernelhead\[cli\]"'):
        draw(SHARES, CURVED, tmp_path / "tiny.svg")
    path = tmp_path / "tiny.md"
    assert write_page(replace(PAGE, shares=(SHARES,)), CURVED, path) == [path]
    assert [each.name for each in tmp_path.iterdir()] == ["tiny.md"]
    words = path.read_text()
    assert "The figure is not drawn. draw: needs matplotlib" in words
    assert "| b | new way | 100.0 (1) | 1.0 (1) | 1.0 (1) | 1.0 (1) |" in words
    assert not draw(SHARES, ROWS, tmp_path / "tiny.svg")
