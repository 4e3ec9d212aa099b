"""The ablation field: its recipe file, what each change does to a model, one short job, and its words."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from kernelhead.data import Images, Series
from kernelhead.errors import BadInput, UnknownName
from kernelhead.inspection import LayerSpectrum
from kernelhead.nn import PrimalAttention, SoftmaxAttention
from kernelhead.training import ablations
from kernelhead.training.ablations import (
    ABLATIONS_PAGE,
    Part,
    Parts,
    Settings,
    ablation_jobs,
    ablation_run,
    curve_of,
    only_side,
    weights_of,
)
from kernelhead.training.course import Course
from kernelhead.training.grid import Job, Outcome
from kernelhead.training.resident import fit_resident
from kernelhead.training.settings import settings_from
from kernelhead.training.table import write_page
from tests.inputs import points

RECIPES = Path(__file__).parents[2] / "recipes" / "ablations.toml"
SMALL = {
    "width": 16,
    "inner": 16,
    "rank": 2,
    "landmarks": 12,
    "steps": 60,
    "batch": 16,
    "every": 30,
    "lr": 3e-3,
}


def drawn(root: Path | None = None) -> Parts:
    """Sequences whose class is their first token."""

    def part(seed: int) -> Part:
        x = torch.from_numpy(np.random.default_rng(seed).integers(0, 2, (64, 12)))
        return Part(x, None, x[:, 0].clone())

    return Parts(part(0), part(1), part(2), classes=2, vocabulary=2, channels=None)


def run(variant: str, **changes: object) -> Outcome:
    recipe = {**SMALL, **changes}
    return ablation_run(Job("ablations", "Image", variant, "clean", 0, recipe))


def test_the_file_of_the_house_has_every_change_on_all_sets() -> None:
    jobs = ablation_jobs(RECIPES, protocol="clean", seeds=3)
    assert len(jobs) == 3 * 15 * 3
    assert {job.variant for job in jobs} == {*ABLATIONS_PAGE.variants}
    base = settings_from(Settings, "base", jobs[0].recipe)
    for job in jobs[: 15 * 3 : 3]:
        settings = settings_from(Settings, job.key, job.recipe)
        changed = [name for name in vars(base) if getattr(settings, name) != getattr(base, name)]
        assert len(changed) == {"primal": 0, "softmax-matched": 2}.get(job.variant, 1)
    for claim in ABLATIONS_PAGE.claims:
        assert {claim.variant, claim.against} <= {*ABLATIONS_PAGE.variants}


@pytest.mark.parametrize(
    "changes",
    [{}, {"eta": 0.0}, {"scores": "left"}, {"attention": "softmax", "match": "primal"}],
    ids=["primal", "eta", "left", "matched"],
)
def test_a_job(changes: dict[str, object], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ablation_run.__globals__["READERS"], "Image", drawn)
    outcome = run("mine", **changes)
    made, curves = outcome.figures, outcome.curves
    assert made["valid_accuracy"] > 0.7
    assert 0 < made["effective_rank"] <= 12
    again = run("mine", **changes)
    assert again.figures["test_accuracy"] == made["test_accuracy"]
    assert again.curves == curves
    # Softmax: as many as points; a primal layer: the features of a head, and its rank.
    lengths = {"spectrum": 12} if "attention" in changes else {"spectrum": 8, "learned": 2}
    assert {name: len(curve) for name, curve in curves.items()} == lengths
    for curve in curves.values():
        assert curve == sorted(curve, reverse=True)
        assert sum(curve) == pytest.approx(1, abs=1e-5)


def test_a_row_keeps_the_largest_values_to_six_digits() -> None:
    values = [1 / place for place in range(1, 1001)]
    curve = curve_of(LayerSpectrum("", "", [values, values], [], [], [], []))
    assert len(curve) == ablations.KEPT == 256
    assert curve == [float(f"{value:.5e}") for value in np.array(values[:256]) / sum(values)]


def test_the_page_compares_the_variants_of_the_ksvd_term(tmp_path: Path) -> None:
    names = [name for shares in ABLATIONS_PAGE.shares for name in shares.variants]
    assert {*names} <= {*ABLATIONS_PAGE.variants}
    curves = {"spectrum": [0.6, 0.4], "learned": [0.7, 0.3]}
    row = {"data": "Image", "protocol": "clean", "seed": 0, "status": "done", "figures": {}}
    rows = [{**row, "variant": name, "curves": curves} for name in ABLATIONS_PAGE.variants]
    made = write_page(ABLATIONS_PAGE, rows, tmp_path / "ablations.md")
    assert [path.name for path in made] == [
        "ablations.md",
        "ablations_spectrum.svg",
        "ablations_learned.svg",
    ]
    lines = made[0].read_text().splitlines()
    assert lines.count("| Image | softmax | 60.0 (1) | 1.0 (1) | 2.0 (1) | 2.0 (1) |") == 1
    assert "| Image | primal, eta 0 | 70.0 (1) | 1.0 (1) | 2.0 (1) | 2.0 (1) |" in lines


@pytest.mark.parametrize(
    "compiled",
    [False, pytest.param(True, marks=(pytest.mark.slow, pytest.mark.plain))],
    ids=["plain", "compiled"],
)
@pytest.mark.parametrize("side", ["left", "right"])
def test_the_other_half_of_the_join_stays_zero(
    side: str, compiled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if compiled:  # without a compiler for code, and with all that comes before it
        chosen = torch.compile
        monkeypatch.setattr(
            torch, "compile", lambda function, dynamic: chosen(function, dynamic=dynamic, backend="aot_eager")
        )
    parts = drawn()
    model = Settings(width=8, rank=3, landmarks=4, scores=side).model(parts)
    joins = [block.attention.join.weight for block in model.blocks]
    before = [join.detach().clone() for join in joins]
    fit_resident(
        model, parts.train.x, parts.train.y, Course(4, 16, weight_decay=0.1, eta=0.1), compiled=compiled
    )
    for join, held in zip(joins, before, strict=True):
        left, right = join.detach().split(3, dim=-1)
        gone, stays = (right, left) if side == "left" else (left, right)
        assert not gone.any()
        assert not torch.equal(stays, held[:, :3] if side == "left" else held[:, 3:])


def test_one_side_alone_does_not_see_the_keys_or_the_queries() -> None:
    x = points(2, 5, 8, dtype=torch.float32)
    for side, other in (("left", "key"), ("right", "query")):
        layer = PrimalAttention(8, heads=2, rank=3, landmarks=4)
        only_side(layer, side)
        before = layer(x)
        torch.nn.init.normal_(getattr(layer, other).weight)
        assert torch.equal(layer(x), before)


def test_changes_reach_the_layers() -> None:
    parts, base = drawn(), Settings(width=8, rank=3, landmarks=4)
    first = base.model(parts).blocks[0].attention
    assert first.landmarks == 4
    free = replace(base, landmarks=0).model(parts).blocks[0].attention
    assert free.landmarks is None
    assert free.left.shape == (2, 4, 3)
    mapped = replace(base, feature_map="polynomial").model(parts).blocks[1].attention
    assert "polynomial" in mapped.extra_repr()
    mixed = replace(base, attention="primal+").model(parts)
    assert isinstance(mixed.blocks[0].attention, SoftmaxAttention)
    assert isinstance(mixed.blocks[1].attention, PrimalAttention)


@pytest.mark.parametrize("data", list(ablations.READERS))
def test_a_matched_softmax_has_as_many_weights(data: str) -> None:
    recipes = {
        job.variant: job.recipe
        for job in ablation_jobs(RECIPES, protocol="clean", seeds=1)
        if job.data == data
    }
    part = Part(torch.zeros(1, 1024 if data == "Image" else 29), None, torch.zeros(1))
    kinds = {"vocabulary": 256, "channels": None} if data == "Image" else {"vocabulary": None, "channels": 12}
    parts = Parts(part, part, part, classes=9, **kinds)
    counts, widths = {}, {}
    for name in ("primal", "softmax", "softmax-matched"):
        model = settings_from(Settings, name, recipes[name]).model(parts)
        counts[name], widths[name] = weights_of(model), model.blocks[0].attention.width
    assert counts["softmax-matched"] == pytest.approx(counts["primal"], rel=ablations.CLOSE)
    assert widths["softmax-matched"] >= widths["softmax"]


def test_a_match_that_is_too_far_is_said() -> None:
    small = Settings(attention="softmax", match="primal", width=64, heads=64, inner=1, rank=1, landmarks=1)
    with pytest.raises(BadInput, match=r"softmax has .* weights at width 64, but primal has"):
        small.model(drawn())


def test_images_and_series_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    def images(name: str, *, split: str, root: Path | None) -> Images:
        return Images(name, np.zeros((4, 1, 3, 3), np.uint8), np.array([0, 1, 0, 1]), ("a", "b"))

    def series(name: str, *, split: str, root: Path | None) -> Series:
        assert name in ablations.SERIES
        long = 5 if split == "train" else 7
        cases = tuple(
            np.random.default_rng(seed).normal(size=(2 + seed % (long - 1), 3)) for seed in range(10)
        )
        return Series(cases, tuple("ab" * 5), name)

    monkeypatch.setitem(ablations._image.__globals__, "read_images", images)
    monkeypatch.setitem(ablations._series.__globals__, "read_series", series)
    tokens = ablations.READERS["Image"](None)
    assert (tokens.longest, tokens.vocabulary, tokens.train.mask) == (9, 256, None)
    assert ablations.SERIES == ("JapaneseVowels", "SpokenArabicDigits")
    vowels, digits = (ablations.READERS[name](None) for name in ablations.SERIES)
    assert digits.train.x.shape == vowels.train.x.shape
    assert (vowels.longest, vowels.channels, vowels.classes) == (5, 3, 2)
    (x, mask), y = vowels.test.on(torch.device("cpu"))
    assert x.shape == (10, 5, 3)
    assert mask.shape == (10, 5)
    assert y.tolist() == [0, 1] * 5
    assert len(vowels.train.y) + len(vowels.valid.y) == 10


@pytest.mark.parametrize(
    ("entry", "sentence"),
    [
        ({"attention": "linear"}, r"ablations: unknown attention 'linear'"),
        ({"scores": "righ"}, r"ablations: unknown scores 'righ', did you mean 'right'"),
        ({"feature_map": "cosin"}, r"ablations: unknown feature map 'cosin', did you mean 'cosine'"),
        ({"match": "prim"}, r"ablations: unknown match 'prim', did you mean 'primal'"),
    ],
)
def test_names_that_nothing_answers_to(entry: dict[str, str], sentence: str) -> None:
    with pytest.raises(UnknownName, match=sentence):
        Settings(**entry)
