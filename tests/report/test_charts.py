"""chart, spectrum_lines and alignment_lines: their curves, their bytes, their place inside a page."""

import re
import sys
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernelhead.errors import MissingExtra
from kernelhead.report.charts import PALETTE, Line, alignment_lines, chart, spectrum_lines

HEADS = st.lists(st.lists(st.floats(1e-3, 1e3), min_size=1, max_size=6), min_size=1, max_size=3)


def draw(*lines: Line, name: str = "a", label: str = "A chart", log: str = "") -> str:
    return chart(lines, name=name, label=label, axes=("epoch", "loss"), log=log)


def texts(svg: str) -> list[str | None]:
    return [node.text for node in ElementTree.fromstring(svg).iter("text")]


def test_a_chart_is_one_element_that_loads_nothing() -> None:
    svg = draw(Line(0, [1, 2], [3, 4]))
    assert ElementTree.fromstring(svg).tag == "svg"
    assert not re.search("http|metadata|<style|xlink|xmlns|font-family|<!", svg)


def test_words_along_the_axes_stay_text() -> None:
    assert {"epoch", "loss"} <= set(texts(draw(Line(0, [1, 2], [3, 4]))))


def test_colours_are_those_of_the_page() -> None:
    svg = draw(Line(1, [1, 2], [3, 4], [2, 3], [4, 5]), Line(len(PALETTE), [1, 2], [1, 2], dashed=True))
    assert not re.search("#[0-9a-f]{6}", svg)
    assert set(re.findall(r"var\(--run-\d+\)", svg)) == {"var(--run-1)", "var(--run-0)"}
    assert "currentColor" in svg


def test_the_same_numbers_give_the_same_bytes() -> None:
    line = Line(2, [1, 2, 3], [1, 2, 1], [0, 1, 0], [2, 3, 2])
    assert draw(line, log="xy") == draw(line, log="xy")


def test_settings_of_the_reader_do_not_reach_the_chart() -> None:
    from matplotlib import rc_context

    plain = draw(Line(0, [1, 2], [3, 4]))
    with rc_context({"lines.linewidth": 9, "svg.fonttype": "path", "axes.facecolor": "red"}):
        assert draw(Line(0, [1, 2], [3, 4])) == plain


def test_ids_carry_the_name_and_are_all_defined() -> None:
    line = Line(0, [1, 2], [3, 4], [2, 3], [4, 5])
    first, second = draw(line, name="a"), draw(line, name="b")
    for svg, name in ((first, "a"), (second, "b")):
        ids = re.findall(r' id="([^"]*)"', svg)
        used = re.findall(r'href="#([^"]*)"|url\(#([^)]*)\)', svg)
        assert len(set(ids)) == len(ids)
        assert all(word.startswith(f"{name}-") for word in ids)
        assert {a or b for a, b in used} <= set(ids)


def test_a_label_is_escaped() -> None:
    svg = draw(Line(0, [1], [1]), label='"><script>')
    assert ElementTree.fromstring(svg).get("aria-label") == '"><script>'
    assert "<script>" not in svg


@pytest.mark.parametrize("log", ["", "x", "xy"])
@pytest.mark.parametrize(
    "y",
    [[2.0], [2.0, 2.0], [1.0, float("nan"), 3.0], list(range(1, 3001))],
    ids=["one", "flat", "gap", "long"],
)
def test_odd_lines_are_drawn_and_stay_small(y: list[float], log: str) -> None:
    svg = draw(Line(0, range(1, len(y) + 1), y, y, y), log=log)
    assert len(svg) < 25_000


@pytest.mark.parametrize("log", ["", "x"])
def test_a_long_line_keeps_both_ends(log: str) -> None:
    x = list(range(1, 1001))
    assert texts(draw(Line(0, x, x), log=log)) == texts(draw(Line(0, [1, 1000], [1, 1000]), log=log))


def test_a_log_axis_has_a_few_ticks_for_any_range() -> None:
    for low in (0.3, 1e-2, 1e-6):
        ticks = texts(draw(Line(0, [1, 20], [1, low]), log="xy"))
        assert {"1", "2", "5", "10", "20", f"{low if low < 0.3 else 0.5:g}"} <= set(ticks)
        assert len(ticks) < 20


def test_spectrum_lines_are_mean_and_range_over_heads() -> None:
    share, decay = spectrum_lines(3, [[1.0, 3.0], [2.0, 2.0], [0.0, 0.0]]) or pytest.fail("no curve")
    assert share.slot == decay.slot == 3
    np.testing.assert_allclose(share.y, [62.5, 100])
    np.testing.assert_allclose([share.low, share.high], [[50, 100], [75, 100]])
    np.testing.assert_allclose(decay.y, [1, 2 / 3])
    np.testing.assert_allclose([decay.low, decay.high], [[1, 1 / 3], [1, 1]])


def test_the_largest_values_do_not_overflow() -> None:
    share, decay = spectrum_lines(0, [[1e308, 1e308], [1e-300, 1e-300]]) or pytest.fail("no curve")
    np.testing.assert_allclose([share.y, decay.y], [[50, 100], [1, 1]])


def test_a_short_head_ends_in_zeros_drawn_at_the_floor() -> None:
    share, decay = spectrum_lines(0, [[1.0], [1.0, 1.0]]) or pytest.fail("no curve")
    np.testing.assert_allclose(share.y, [75, 100])
    np.testing.assert_allclose(decay.low, [1, 1e-6])


@pytest.mark.parametrize("heads", [[], [[]], [[0.0, 0.0]]], ids=str)
def test_heads_without_a_positive_value_have_no_curve(heads: list[list[float]]) -> None:
    assert spectrum_lines(0, heads) is None


@given(heads=HEADS, scale=st.floats(0.1, 10))
def test_spectrum_lines_ignore_scale_and_order(heads: list[list[float]], scale: float) -> None:
    curves = spectrum_lines(0, heads)
    moved = spectrum_lines(0, [[scale * value for value in reversed(head)] for head in reversed(heads)])
    assert curves
    assert moved
    for curve, other in zip(curves, moved, strict=True):
        np.testing.assert_allclose(curve.y, other.y, rtol=1e-9)
        assert (np.asarray(curve.low) <= np.asarray(curve.high)).all()
    assert (np.diff(curves[0].y) >= -1e-9).all()
    np.testing.assert_allclose(curves[0].y[-1], 100)


def test_a_figure_stands_beside_its_baselines() -> None:
    lines = alignment_lines(1, [0.9, 0.8], [[0.5, 0.7], [0.6, 0.2]])
    assert lines
    own, chance = lines
    assert (own.slot, chance.slot, own.dashed, chance.dashed) == (1, 1, False, True)
    assert (list(own.x), list(own.y)) == ([0, 1], [0.9, 0.8])
    assert (list(chance.low), list(chance.y), list(chance.high)) == ([0.5, 0.2], [0.6, 0.7], [0.6, 0.7])
    assert ElementTree.fromstring(draw(*lines)).tag == "svg"


def test_a_figure_that_no_head_has_is_no_line() -> None:
    assert alignment_lines(0, [None, None], [[0.5, 0.7]]) is None


def test_a_missing_matplotlib_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(MissingExtra, match=r'chart: needs matplotlib.*pip install "kernelhead\[cli\]"'):
        draw(Line(0, [1], [1]))
