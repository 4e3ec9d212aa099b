"""jobs_from: what is shared, what is a set's, what is a variant's, and what is refused."""

from dataclasses import dataclass
from pathlib import Path

import pytest

from kernelhead.errors import BadInput, UnknownName
from kernelhead.training.grid import Job
from kernelhead.training.settings import jobs_from, settings_from


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
    with pytest.raises(BadInput, match=r"none.toml does not exist; a checkout of kernelhead has it"):
        jobs_from("tiny", none, Settings, sets=(), protocol="clean", seeds=1)
    with pytest.raises(UnknownName, match=r"tiny: unknown protocol 'paper'"):
        jobs_from("tiny", none, Settings, sets=(), protocol="paper", seeds=1)
