"""The text field: its recipe file, its loss over windows, one short job, and its words."""

from math import exp
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from kernelhead.data import Words
from kernelhead.errors import BadInput, UnknownName
from kernelhead.training import markdown
from kernelhead.training.grid import Job
from kernelhead.training.words import TEXT_PAGE, VARIANTS, Settings, text_jobs, text_loss, text_run
from tests.inputs import points

RECIPES = Path(__file__).parents[2] / "recipes" / "text.toml"
LETTERS = tuple("abcdefg")
SMALL = {"context": 8, "width": 16, "depth": 2, "heads": 2, "rank": 2, "dropout": 0.0, "lr": 1e-2}


def drawn(name: str, *, split: str, root: Path | None) -> Words:
    """A text in which a letter is followed by the next one, but for a tenth of the places."""
    draws = np.random.default_rng({"train": 0, "validation": 1, "test": 2}[split])
    tokens = np.cumsum(np.where(draws.random(400) < 0.9, 1, 3)) % len(LETTERS)
    return Words(name, tokens.astype(np.int64), LETTERS)


def test_the_file_of_the_house() -> None:
    jobs = text_jobs(RECIPES, protocol="clean", seeds=3)
    assert len(jobs) == 4 * 3
    assert {job.variant for job in jobs} == {*TEXT_PAGE.variants}
    assert jobs[0].recipe["context"] == 256
    assert not TEXT_PAGE.higher


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_job(variant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(text_run.__globals__, "read_words", drawn)
    recipe = {**SMALL, "attention": variant, "steps": 60, "batch": 16, "every": 20, "eta": 0.1}
    job = Job("text", "WikiText-2", variant, "clean", 0, recipe)
    made = text_run(job)
    assert 1 < made.figures["test_perplexity"] < 3
    assert made.figures["train_tokens"] == 400
    assert text_run(job).figures["test_perplexity"] == made.figures["test_perplexity"]


def test_a_text_is_listed_where_it_is_and_trained_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KERNELHEAD_DATA", raising=False)
    folder = tmp_path / "wikitext103"
    assert "WikiText-103" not in {job.data for job in text_jobs(RECIPES, protocol="clean", seeds=1)}
    assert len(text_jobs(RECIPES, protocol="clean", seeds=1, root=tmp_path)) == 4
    folder.mkdir()
    listed = text_jobs(RECIPES, protocol="clean", seeds=1, root=tmp_path)
    jobs = {job.variant: job for job in listed if job.data == "WikiText-103"}
    assert [*jobs] == ["softmax", "primal+"]
    recipe = jobs["primal+"].recipe
    assert (recipe["batch"], recipe["accumulate"], recipe["context"]) == (64, 16, 512)
    assert (recipe["rank"], recipe["eta"], recipe["steps"]) == (30, 0.1, 150_000)
    for part in ("train", "valid", "test"):
        words = drawn("", split="validation" if part == "valid" else part, root=None)
        lines = [" ".join(words.vocabulary[token] for token in row) for row in words.tokens.reshape(20, 20)]
        (folder / f"wiki.{part}.tokens").write_text("".join(f" {line} \n" for line in lines))
    short = {**recipe, **SMALL, "steps": 60, "batch": 16, "every": 20, "accumulate": 4}
    job = Job("text", "WikiText-103", "primal+", "clean", 0, short)
    made = text_run(job, root=tmp_path)
    assert 1 < made.figures["test_perplexity"] < 4
    assert made.figures["train_tokens"] == 420
    assert text_run(job, root=tmp_path).figures["test_perplexity"] == made.figures["test_perplexity"]


def test_short_whole_numbers_are_tokens_too() -> None:
    tokens = torch.arange(20) % 7
    model = Settings(**SMALL, position="sinusoidal").model(7)
    assert model.positions.kind == "sinusoidal"
    assert text_loss(model, tokens.int(), context=8) == text_loss(model, tokens, context=8)


def test_published_figures_stand_beside_the_text_they_are_of() -> None:
    row = {"protocol": "clean", "seed": 0, "status": "done", "variant": "softmax"}
    figures = {"test_perplexity": 34.0, "steps_a_second": 9.0}
    page = markdown(
        TEXT_PAGE, [{**row, "data": name, "figures": figures} for name in ("WikiText-2", "WikiText-103")]
    )
    assert "| WikiText-2 | 34.0 (1) | - | - |" in page
    assert "| WikiText-103 | 34.0 (1) | *33.0* | *31.0* |" in page


def test_a_text_that_is_too_short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(text_run.__globals__, "read_words", drawn)
    job = Job("text", "WikiText-2", "softmax", "clean", 0, {**SMALL, "context": 256})
    with pytest.raises(BadInput, match=r"0 inputs and 0 targets"):
        text_run(job)


class Bigram(nn.Module):
    """Scores of the next token from one token, and from nothing else."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(points(7, 7, dtype=torch.float32))

    def forward(self, tokens: Tensor) -> Tensor:
        return self.table[tokens]


@pytest.mark.parametrize("length", [2, 8, 9, 10, 33])
def test_the_loss_counts_every_token_but_the_first_once(length: int) -> None:
    tokens = torch.arange(length).square() % 7
    model = Bigram()
    wanted = F.cross_entropy(model.table[tokens[:-1]].detach(), tokens[1:])
    found = text_loss(model, tokens, context=8, batch=2)
    assert found == pytest.approx(float(wanted), rel=1e-6)


def test_no_window_sees_the_one_before_it() -> None:
    seen: list[tuple[int, ...]] = []

    class Noting(Bigram):
        def forward(self, tokens: Tensor) -> Tensor:
            seen.extend(tuple(row) for row in tokens.tolist())
            return super().forward(tokens)

    assert exp(text_loss(Noting(), torch.arange(8) % 7, context=3, batch=1)) > 1
    assert seen == [(0, 1, 2), (3, 4, 5), (6,)]


def test_words_of_complaint() -> None:
    with pytest.raises(BadInput, match=r"text_loss: a text of 1 tokens, expected two or more"):
        text_loss(Bigram(), torch.zeros(1, dtype=torch.int64), context=4)
    with pytest.raises(UnknownName, match=r"text: unknown variant 'nystrom'"):
        Settings(attention="nystrom")
