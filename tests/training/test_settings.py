"""jobs_from: what is shared, what is a set's, what is a variant's, and what is refused."""

from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from kernelhead.errors import BadInput, UnknownName
from kernelhead.training import arena
from kernelhead.training.grid import Job
from kernelhead.training.lra import lra_jobs
from kernelhead.training.settings import course_of, jobs_from, settings_from


@dataclass(frozen=True)
class Settings:
    attention: str = "softmax"
    width: int = 8
    rank: int = 2


def listed(path: Path, text: str, *, variants: tuple[str, ...] | None = ("softmax", "primal")) -> list[Job]:
    path.write_text(text, encoding="utf-8")
    return jobs_from(
        "tiny", path, Settings, sets=("Dice", "Coins"), protocol="clean", seeds=2, variants=variants
    )


def test_a_variant_has_what_is_shared_what_is_its_sets_and_its_own(tmp_path: Path) -> None:
    text = "width = 4\n[Dice]\nrank = 5\nprimal = { rank = 6 }\nsoftmax = {}\n[Coins.primal]"
    jobs = listed(tmp_path / "mine.toml", text)
    assert [(job.data, job.variant, job.seed) for job in jobs[:3]] == [
        ("Dice", "primal", 0),
        ("Dice", "primal", 1),
        ("Dice", "softmax", 0),
    ]
    assert jobs[0].recipe == {"attention": "primal", "width": 4, "rank": 6}
    assert jobs[2].recipe == {"attention": "softmax", "width": 4, "rank": 5}
    assert settings_from(Settings, "job", jobs[-1].recipe) == Settings("primal", 4, 2)


def test_any_name_is_a_variant_where_none_is_known(tmp_path: Path) -> None:
    jobs = listed(tmp_path / "mine.toml", "[Dice]\nodd = { rank = 3 }", variants=None)
    assert jobs[0].variant == "odd"
    assert jobs[0].recipe == {"rank": 3}


@pytest.mark.parametrize(
    ("text", "error", "sentence"),
    [
        ("[Cards.primal]", UnknownName, r"unknown set 'Cards'"),
        ("[Dice.prim]", UnknownName, r"\[Dice.prim\]: unknown variant 'prim', did you mean 'primal'"),
        ("[Dice.primal]\nranks = 3", UnknownName, r"unknown entry 'ranks'"),
        ("[Dice", BadInput, r"is not a readable TOML file"),
    ],
)
def test_files_that_are_refused(text: str, error: type[Exception], sentence: str, tmp_path: Path) -> None:
    with pytest.raises(error, match=sentence):
        listed(tmp_path / "mine.toml", text)


def test_what_is_not_there(tmp_path: Path) -> None:
    none = tmp_path / "none.toml"
    with pytest.raises(BadInput, match=r"none.toml does not exist; by default it is"):
        jobs_from("tiny", none, Settings, sets=(), protocol="clean", seeds=1)
    with pytest.raises(UnknownName, match=r"tiny: unknown protocol 'paper'"):
        jobs_from("tiny", none, Settings, sets=(), protocol="paper", seeds=1)


@pytest.mark.parametrize(
    ("entry", "sentence"),
    [
        ('width = "wide"', r"\[Image.primal\]: width is 'wide', expected a whole number"),
        ("steps = 3.5", r"steps is 3.5, expected a whole number"),
        ('clip = "none"', r"clip is 'none', expected a number"),
    ],
)
def test_an_entry_of_the_wrong_type_is_named(entry: str, sentence: str, tmp_path: Path) -> None:
    path = tmp_path / "lra.toml"
    path.write_text(f"{entry}\n[Image.primal]\n", encoding="utf-8")
    with pytest.raises(BadInput, match=sentence):
        lra_jobs(path, protocol="clean", seeds=1)


def test_a_course_takes_what_settings_have() -> None:
    course = course_of(arena.Settings(steps=7, eta=0.3), 2, torch.device("cpu"))
    assert (course.steps, course.eta, course.seed, course.schedule) == (7, 0.3, 2, "one_cycle")
    assert (course.precision, course.clip) == ("32", None)
    assert course_of(arena.Settings(), 0, torch.device("cuda")).precision == "bf16"
    assert course_of(arena.Settings(cpu_precision="bf16"), 0, torch.device("cpu")).precision == "bf16"
