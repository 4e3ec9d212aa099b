"""A primal layer in a vision Transformer: its settings, and one job of each way on tiny images."""

from pathlib import Path

import numpy as np
import pytest

from kernelhead.data import Images
from kernelhead.errors import UnknownName
from kernelhead.training import Job, vits
from kernelhead.training.vits import VIT_PAGE, vit_jobs, vit_run

ROOT = Path(__file__).parents[2]
SMALL = {
    "width": 16, "depth": 2, "heads": 2, "rank": 2, "steps": 4, "every": 2, "batch": 8, "calibration": 8,
    "learned": 20, "layer_steps": 2, "whole_steps": 2,
}  # fmt: skip


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    """Images of two classes in place of the real ones."""
    pytest.importorskip("transformers")

    def images(name: str, *, split: str, root: object) -> Images:
        draws = np.random.default_rng({"train": 0, "validation": 1, "test": 2}[split])
        x, y = draws.integers(0, 256, (40, 1, 8, 8), np.uint8), draws.integers(0, 2, 40)
        return Images(name, x, y.astype(np.int64), ("a", "b"))

    monkeypatch.setattr(vits, "read_images", images)


def job(**settings: object) -> Job:
    return Job("vit", "MNIST", "any", "clean", 0, {**SMALL, **settings})


def test_the_file_of_the_house_names_what_the_page_shows() -> None:
    jobs = vit_jobs(ROOT / "recipes" / "vit.toml", protocol="clean", seeds=2)
    assert {each.variant for each in jobs} == {*VIT_PAGE.variants}


@pytest.mark.usefixtures("tiny")
def test_each_way_has_its_figures() -> None:
    host, grafted, scratch = (vit_run(job(way=way)) for way in ("host", "graft", "scratch"))
    assert host.figures["test_accuracy"] == host.figures["host_accuracy"] == grafted.figures["host_accuracy"]
    assert {"start_accuracy", "output_error", "graft_seconds"} <= {*grafted.figures}
    assert "start_accuracy" not in scratch.figures
    assert (host.parameters or 0) < (scratch.parameters or 0) == grafted.parameters
    drawn = vit_run(job(start="random", where="all", landmarks=3)).figures
    assert drawn["output_error"] > 0


@pytest.mark.usefixtures("tiny")
def test_wrong_settings_are_said() -> None:
    with pytest.raises(UnknownName, match="unknown way 'none'"):
        vit_run(job(way="none"))
    with pytest.raises(UnknownName, match="unknown start 'there'"):
        vit_run(job(start="there"))
