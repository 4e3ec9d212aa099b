"""Claims of functional time representation (arXiv 1911.12864) where the answer lies in the times alone.

Lag lookup: which event was closest to seven days before the question? 20,000 sequences; a quarter of the
course, 250 steps, is enough for functions of time and not for positions. `kernelhead reproduce events` has
all of it, where positions do not find it either, with seeds and other encodings.
"""

from dataclasses import replace
from pathlib import Path

import pytest

from kernelhead.training.events import event_jobs, event_run

VERDICTS = {
    "Features of time find what positions cannot": "holds",
    "A learned spectrum finds more than a fixed random one": "does not hold",
}
RECIPES = Path(__file__).parents[2] / "recipes" / "events.toml"


def accuracy(variant: str, steps: int = 250) -> float:
    jobs = event_jobs(RECIPES, protocol="clean", seeds=1)
    (job,) = (job for job in jobs if (job.data, job.variant) == ("lag lookup", variant))
    return event_run(replace(job, recipe={**job.recipe, "steps": steps})).figures["test_accuracy"]


@pytest.mark.slow
@pytest.mark.parametrize("variant", ["bochner", pytest.param("mercer", marks=pytest.mark.long)])
def test_functions_of_time_find_it(variant: str) -> None:
    assert accuracy(variant) >= 0.97


@pytest.mark.slow
@pytest.mark.parametrize("steps", [250, pytest.param(1000, marks=pytest.mark.long)])
def test_positions_do_not(steps: int) -> None:
    assert accuracy("position", steps) <= 0.35


@pytest.mark.slow
@pytest.mark.long
def test_a_fixed_random_spectrum_does_as_well() -> None:
    assert accuracy("fixed") >= 0.97
