"""The field of scenes: its recipe file, one short job of each variant, its figures, its words."""

from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from kernelhead.data import Images, draw_scenes
from kernelhead.data.scenes import TURNED
from kernelhead.errors import BadInput, UnknownName
from kernelhead.models import VisionLanguageModel
from kernelhead.training import Job, markdown, scenes
from kernelhead.training.scenes import SCENES_PAGE, Settings, scene_figures, scene_flow, scene_jobs, scene_run

ROOT = Path(__file__).parents[2]
SMALL: dict[str, Any] = {
    "width": 16, "heads": 2, "encoder_depth": 1, "depth": 2, "side": 2, "objects": 2, "cases": 64, "held": 32,
    "read": 8, "steps": 3, "batch": 8, "every": 2,
}  # fmt: skip


def job(data: str = "shapes", seed: int = 0, **settings: object) -> Job:
    return Job("scenes", data, "any", "clean", seed, {**SMALL, **settings})


def house() -> dict[tuple[str, str], Job]:
    jobs = scene_jobs(ROOT / "recipes" / "scenes.toml", protocol="clean", seeds=1)
    return {(each.data, each.variant): each for each in jobs}


def test_the_file_of_the_house_names_what_the_page_shows() -> None:
    jobs = house()
    assert {variant for _, variant in jobs} == {*SCENES_PAGE.variants}
    assert {data for data, _ in jobs} == {"shapes", "digits", "digits, long"}
    assert jobs["digits", "none+random"].recipe["encoder"] == "none"
    judged = {name for claim in SCENES_PAGE.claims for name in (claim.variant, claim.against)}
    assert judged <= {*SCENES_PAGE.variants}


def test_models_of_the_house_have_equally_many_parameters() -> None:
    drawn = draw_scenes(1, seed=0)
    sizes = [
        sum(
            each.numel() for each in scenes.settings_from(Settings, "a", job.recipe).model(drawn).parameters()
        )
        for (data, _), job in house().items()
        if data == "shapes"
    ]
    assert max(sizes) - min(sizes) < 1e-3 * min(sizes)


@pytest.mark.parametrize("variant", [*SCENES_PAGE.variants])
def test_a_job_of_every_variant(variant: str) -> None:
    own = {name: house()["shapes", variant].recipe.get(name) for name in ("encoder", "regions")}
    made = scene_run(job(**{name: value for name, value in own.items() if value}))
    assert {*SCENES_PAGE.beside, "test_accuracy", "image_from_words", "untrained_imf"} <= {*made.figures}
    assert all(0 <= made.figures[name] <= 1 for name in made.figures if name.endswith("accuracy"))
    layers = 3 if own["encoder"] == "none" else 2
    curves = dict(made.curves)
    watched = curves.pop("valid_accuracy")
    assert (max(watched), fmean(watched)) == (made.figures["valid_accuracy"], made.figures["course_accuracy"])
    assert {len(curve) for curve in curves.values()} == {layers}
    assert made.curves["cumulative_words_from_image"][-1] == made.figures["words_from_image"]
    rows = [
        {"data": "shapes", "variant": variant, "protocol": "clean", "status": "done", "figures": made.figures}
    ]
    assert SCENES_PAGE.variants[variant] in markdown(SCENES_PAGE, rows)


def test_a_job_is_repeated_by_its_seed() -> None:
    first, again, other = (scene_run(job(seed=seed, regions="attention")) for seed in (0, 0, 1))
    timed = {"steps_a_second", "peak_gib"}
    assert all(first.figures[name] == again.figures[name] for name in {*first.figures} - timed)
    assert first.figures["imf"] != other.figures["imf"]


def test_primal_fusion_is_read_by_its_magnitudes() -> None:
    made = scene_run(job(attention="primal", rank=2))
    assert 0 < made.figures["imf"] < 1


def test_digits_are_composed_of_the_images_of_their_part(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def images(name: str, *, split: str, root: object) -> Images:
        asked.append((name, split))
        y = np.tile(np.arange(10), 2)
        return Images(name, np.zeros((20, 1, 8, 8), np.uint8), y, tuple("0123456789"))

    monkeypatch.setattr(scenes, "read_images", images)
    scenes._scenes.cache_clear()
    scene_run(job("digits"))
    scenes._scenes.cache_clear()
    assert asked == [("mnist", part) for part in ("train", "validation", "test")]


class Oracle(nn.Module):
    """Tells from the hidden truth whether captions match; its words are those of the captions."""

    def __init__(self, scores: dict[bytes, float], words: Tensor, size: int) -> None:
        super().__init__()
        self.scores, self.truth, self.longest, self.size = scores, words, words.shape[1], size
        self.nothing = nn.Parameter(torch.zeros(1))

    def forward(self, image: Tensor, words: Tensor) -> Tensor:
        pairs = zip(image, words, strict=True)
        return torch.tensor([self.scores[x.numpy().tobytes() + w.numpy().tobytes()] for x, w in pairs])

    def visual(self, image: Tensor) -> Tensor:
        return image

    def fused(self, visual: Tensor, words: Tensor) -> Tensor:
        return nn.functional.one_hot(self.truth, self.size).float()

    def wording(self, fused: Tensor) -> Tensor:
        return fused


def test_figures_of_one_who_knows_and_of_one_who_sees_objects_only() -> None:
    drawn = draw_scenes(64, seed=5)
    opposite, right = drawn.opposite(), drawn.words[drawn.y == 1]
    said = {}
    for case in range(64):
        for words, true in (
            (drawn.words[case], drawn.faults[case] == 0),
            (opposite[case], drawn.faults[case] == 2),
        ):
            said[drawn.x[case].tobytes() + words.tobytes()] = 1.0 if true else -1.0
    knows: Any = Oracle(said, torch.from_numpy(right), len(drawn.vocabulary))
    assert scene_figures(knows, drawn) == {
        f"{name}accuracy": 1.0 for name in ("", "object_", "relation_", "place_", "word_")
    }
    objects = dict.fromkeys(said, 1.0)
    for case in np.flatnonzero(drawn.faults == 1):
        for words in (drawn.words[case], opposite[case]):
            objects[drawn.x[case].tobytes() + words.tobytes()] = -1.0
    turned = right.copy()
    for one, other in TURNED:
        places = drawn.vocabulary.index(one), drawn.vocabulary.index(other)
        turned[right == places[0]] = places[1]
    sees: Any = Oracle(objects, torch.from_numpy(turned), len(drawn.vocabulary))
    found = scene_figures(sees, drawn)
    assert found["accuracy"] == 0.75
    assert found["object_accuracy"] == 1.0
    assert 0 < found["word_accuracy"] < 1


def test_flow_of_a_model_is_that_of_its_fusion() -> None:
    drawn = draw_scenes(6, side=2, objects=2, seed=0)
    model = Settings(**{**SMALL, "encoder_depth": 2}).model(drawn)
    assert isinstance(model, VisionLanguageModel)
    read = scene_flow(model, drawn)
    assert read.names == ("words", "image")
    assert len(read.paths) == 2
    assert read.sizes[1] == 4


@pytest.mark.slow
@pytest.mark.long
def test_what_is_there_is_learned() -> None:
    recipe = {"width": 32, "cases": 8192, "held": 512, "steps": 700, "batch": 64, "every": 700, "lr": 3e-3}
    made = scene_run(job(**{**recipe, "encoder": "none"}))
    assert made.figures["test_accuracy"] > 0.6


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
@pytest.mark.parametrize("regions", ["attention", "random", "none"])
@pytest.mark.parametrize("compiled", [False, True])
def test_a_captured_course_learns(regions: str, compiled: bool) -> None:
    recipe = {"width": 32, "cases": 8192, "held": 512, "steps": 1500, "batch": 64, "every": 1500, "lr": 2e-3}
    made = scene_run(job(**{**recipe, "regions": regions, "compiled": compiled}))
    assert made.figures["test_accuracy"] > 0.6
    assert made.figures["steps_a_second"] > 50


def test_wrong_settings_are_said(tmp_path: Path) -> None:
    with pytest.raises(UnknownName, match="scenes: unknown regions 'some'"):
        scene_run(job(regions="some"))
    with pytest.raises(UnknownName, match="unknown encoder 'eye'"):
        scene_run(job(encoder="eye"))
    with pytest.raises(BadInput, match="the visual encoder has no self-attention to read"):
        scene_run(job(encoder="none", regions="attention"))
    file = tmp_path / "scenes.toml"
    file.write_text("[photos]\nattention = {}\n")
    with pytest.raises(UnknownName, match="unknown set 'photos'"):
        scene_jobs(file, protocol="clean", seeds=1)
