"""The depth field: its recipe file, its networks, one short job, the best depth, the figure, its words."""

from math import log, log2
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kernelhead.errors import BadInput, UnknownName
from kernelhead.models import LEVINE2020, count_params
from kernelhead.rng import seeded
from kernelhead.training import FIELDS, best_depths, markdown, regime_panels
from kernelhead.training.depth import BUDGETS, DEPTH_PAGE, DEPTHS, Settings, _sampled, depth_jobs, depth_run
from kernelhead.training.grid import Job
from kernelhead.training.settings import settings_from
from tests.tolerance import assert_exact

RECIPES = Path(__file__).parents[2] / "recipes" / "depth.toml"
SMALL = {"context": 8, "width": 16, "depth": 2, "heads": 2, "steps": 60, "batch": 16, "rate": 0.2}


def test_the_file_of_the_house() -> None:
    jobs = depth_jobs(RECIPES, protocol="clean", seeds=2)
    assert len(jobs) == len(BUDGETS) * len(DEPTHS) * 2
    assert {job.variant for job in jobs} == {*DEPTH_PAGE.variants}
    assert FIELDS["depth"].page is DEPTH_PAGE
    for job in jobs:
        settings = settings_from(Settings, job.key, job.recipe)
        assert str(settings.depth) == job.variant
        assert settings.lr == settings.rate / settings.width
        assert 12 * settings.depth * settings.width**2 == pytest.approx(BUDGETS[job.data], rel=0.021)
        if job.data != "0.15M":
            assert (settings.rate, settings.width % (8 * settings.heads)) == (0.6, 0)
            assert settings.steps * settings.batch * settings.context == 32_768_000
    assert [round(LEVINE2020.depth(budget), 1) for budget in BUDGETS.values()] == [0.5, 5.0, 10.6]


def test_what_blocks_add_is_scaled_down_at_the_start() -> None:
    made = {}
    for depth in (2, 8):
        with seeded(0):
            made[depth] = Settings(width=16, heads=2, depth=depth, context=8).model()
    one, other = (made[depth].blocks[0] for depth in (2, 8))
    assert_exact(one.attention.out.weight.double(), 2 * other.attention.out.weight.double(), bound=1e-6)
    last = [block.feed_forward[-1].weight.double() for block in (one, other)]
    assert_exact(last[0], 2 * last[1], bound=1e-6)
    assert torch.equal(one.attention.query.weight, other.attention.query.weight)


@pytest.fixture
def corpus(tmp_path: Path) -> str:
    """A text in which a letter is followed by the next one, but for a tenth of the places."""
    steps = np.where(np.random.default_rng(0).random(4000) < 0.9, 1, 3)
    (tmp_path / "letters.txt").write_bytes((97 + np.cumsum(steps) % 7).astype(np.uint8).tobytes())
    return str(tmp_path / "letters.txt")


def test_a_job(corpus: str) -> None:
    job = Job("depth", "2.5M", "2", "clean", 0, {**SMALL, "corpus": corpus, "judged": 150})
    made = depth_run(job)
    assert 0.3 < made.figures["test_loss"] < 1.9  # ln 7 is 1.95, and nothing is below 0.325
    assert made.figures["test_bits"] == pytest.approx(made.figures["test_loss"] / log(2))
    assert made.figures["block_params"] == count_params(2, 16)
    assert made.parameters == count_params(2, 16) + (256 + 8) * 16
    assert made.figures["train_bytes"] == 3600
    assert depth_run(job).figures["test_loss"] == made.figures["test_loss"]


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")  # of the compiler
@pytest.mark.parametrize("compiled", [False, True])
def test_a_captured_job_on_a_gpu(corpus: str, compiled: bool) -> None:
    recipe = {**SMALL, "corpus": corpus, "compiled": compiled}
    assert depth_run(Job("depth", "2.5M", "2", "clean", 0, recipe)).figures["test_loss"] < 1.9


@given(n=st.integers(1, 3000), most=st.integers(64, 2000))
def test_a_part_of_a_text_is_taken_at_even_distances(n: int, most: int) -> None:
    text = (np.arange(n) % 251).astype(np.uint8)
    part = _sampled(text, most)
    assert len(part) <= most
    assert len(part) == n or len(part) == most // 64 * 64
    assert part[0] == text[0]
    assert part[-1] == text[-1]


def rows(losses: dict[tuple[str, int], list[float]]) -> list[dict[str, Any]]:
    return [
        {"data": data, "variant": str(depth), "protocol": "clean", "seed": seed, "status": "done",
         "figures": {"test_loss": loss}}
        for (data, depth), found in losses.items()
        for seed, loss in enumerate(found)
    ]  # fmt: skip


@given(best=st.floats(1.2, 4.8), spread=st.floats(0, 0.01))
def test_the_best_depth_is_that_of_a_parabola(best: float, spread: float) -> None:
    means = {("9.8M", depth): 1.3 + 0.05 * (log2(depth) - best) ** 2 for depth in DEPTHS}
    found = best_depths(rows({key: [mean - spread, mean + spread] for key, mean in means.items()}))["9.8M"]
    assert found.depth == min(DEPTHS, key=lambda depth: means["9.8M", depth])
    assert found.lead >= 0
    if 2 < found.depth < 32:
        assert found.between == pytest.approx(2**best, rel=1e-4)
    else:
        assert found.between == found.depth


def test_the_page_judges_neighbours() -> None:
    page = markdown(
        DEPTH_PAGE, rows({("2.5M", 2): [1.3, 1.302], ("2.5M", 4): [1.25, 1.251], ("9.8M", 2): [1.2, 1.2]})
    )
    assert "| 2 layers | 1301.0 ± 1.4 (2) | 1200.0 ± 0.0 (2) |" in page
    assert "| 4 layers are better than 2 | 2.5M | +50.5 | 2.2 | holds |" in page


def test_the_figure_has_both_regimes() -> None:
    ranks, gains, law = regime_panels()
    dots = ranks.curves[-1]
    lines = {curve.label: curve for curve in ranks.curves}
    assert dots.y[2] == pytest.approx(lines["width 2"].y[2])  # computed, and by the closed form
    for curve in gains.curves:
        below, above = min(curve.x), max(curve.x)
        assert below < 0 < above
        assert curve.y[-1] == pytest.approx(1, abs=1e-2)
    assert gains.curves[-1].y[0] < 0.05
    assert "GPT-3" in law.curves[-1].label


def test_what_is_refused(tmp_path: Path, corpus: str) -> None:
    with pytest.raises(BadInput, match=r"best_depths: 2.5M has the depth \[2\] only, expected two or more"):
        best_depths(rows({("2.5M", 2): [1.0]}))
    with pytest.raises(BadInput, match=r"0 inputs and 0 targets"):
        depth_run(Job("depth", "2.5M", "2", "clean", 0, {**SMALL, "corpus": corpus, "context": 4000}))
    (tmp_path / "depth.toml").write_text("['3M']\n2 = {}")
    with pytest.raises(UnknownName, match="unknown set '3M'"):
        depth_jobs(tmp_path / "depth.toml", protocol="clean", seeds=1)
