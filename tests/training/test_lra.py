"""The long-range field: its recipe file, one short job, and its words."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from kernelhead.data import Tokens, draw_listops, draw_marked, draw_tangled, listops_marks, listops_value
from kernelhead.errors import BadInput, UnknownName
from kernelhead.training import lra
from kernelhead.training.arena import Settings, token_loss
from kernelhead.training.grid import Job
from kernelhead.training.lessons import drawn_cases, with_lessons
from kernelhead.training.lra import accuracy, lra_jobs, lra_run
from kernelhead.training.resident import fit_resident
from kernelhead.training.views import moved, turned

ROOT = Path(__file__).parents[2]


def drawn(split: str, root: Path | None, count: int) -> Tokens:
    """Sequences whose class is their first token, some of them shorter than the others."""
    draws = np.random.default_rng({"train": 0, "validation": 1, "test": 2}[split])
    lengths = draws.integers(4, 13, 64)
    x = draws.integers(1, 3, (64, 12)).astype(np.uint8)
    y = x[:, 0].astype(np.int64) - 1
    x[np.arange(12) >= lengths[:, None]] = 0
    return Tokens("drawn", x, y, lengths, 3, ("a", "b"))


def test_the_file_of_the_house_has_all_published_settings() -> None:
    jobs = lra_jobs(ROOT / "recipes" / "lra.toml", protocol="clean", seeds=2)
    assert len(jobs) == (4 * 8 + 2) * 2
    chosen = {(job.data, job.variant): job.recipe for job in jobs}
    assert chosen["ListOps", "primal"]["rank"] == 20
    assert chosen["Text", "primal+"]["eta"] == 0.1
    assert chosen["Image", "softmax"]["steps"] == 35_000
    assert chosen["Pathfinder", "primal+"]["batch"] == 256


@pytest.mark.parametrize("variant", ["primal", "softmax"])
def test_a_job(variant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(lra_run.__globals__["READERS"], "ListOps", drawn)
    recipe = {"attention": variant, "steps": 60, "batch": 16, "every": 30, "lr": 3e-3, "rank": 2, "eta": 0.1}
    made = lra_run(Job("lra", "ListOps", variant, "clean", 0, {**recipe, "width": 16, "inner": 16}))
    assert made.figures["valid_accuracy"] > 0.7
    assert made.figures["train_cases"] == 64
    again = lra_run(Job("lra", "ListOps", variant, "clean", 0, {**recipe, "width": 16, "inner": 16}))
    assert again.figures["test_accuracy"] == made.figures["test_accuracy"]


def test_a_rule_of_one_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(lra_run.__globals__["READERS"], "ListOps", drawn)
    made = lra_run(Job("lra", "ListOps", "first token", "clean", 0, {"attention": "first token"}))
    assert made.figures == {"test_accuracy": 1.0, "valid_accuracy": 1.0, "train_cases": 64.0}
    assert made.parameters is None


def test_a_job_with_neighbours_and_modes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(lra_run.__globals__["READERS"], "ListOps", drawn)
    recipe = {
        "attention": "primal",
        "steps": 40,
        "batch": 16,
        "every": 20,
        "lr": 3e-3,
        "rank": 2,
        "width": 16,
    }
    more = {"inner": 16, "landmarks": 6, "modes": 2, "window": 3, "dilations": "1,2", "drop_path": 0.1}
    made = lra_run(Job("lra", "ListOps", "kernelhead", "clean", 0, {**recipe, **more, "smoothing": 0.1}))
    assert made.figures["valid_accuracy"] > 0.7


def squares(split: str, root: Path | None, count: int) -> Tokens:
    """Pictures of 4 by 4 pixels, whose class is which tokens they have more of."""
    draws = np.random.default_rng({"train": 0, "validation": 1, "test": 2}[split])
    x = draws.integers(0, 2, (64, 16)).astype(np.uint8)
    return Tokens("squares", x, (x.sum(1) > 8).astype(np.int64), np.full(64, 16), 2, ("few", "many"))


def test_a_job_on_pictures_that_are_moved_and_turned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(lra_run.__globals__["READERS"], "Image", squares)
    recipe = {"attention": "softmax", "steps": 80, "batch": 16, "every": 40, "lr": 3e-3, "width": 16}
    views = {"mirror": True, "turn": True, "smoothing": 0.1}
    made = lra_run(Job("lra", "Image", "softmax", "clean", 0, {**recipe, **views}))
    assert made.figures["valid_accuracy"] > 0.8


@pytest.mark.parametrize("settings", [{"shift": 2}, {"mirror": True}, {"turn": True}])
def test_other_sequences_are_not_moved(settings: dict[str, object], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(lra_run.__globals__["READERS"], "ListOps", drawn)
    with pytest.raises(BadInput, match=r"ListOps has shift .* none of them but for Image and Pathfinder"):
        lra_run(Job("lra", "ListOps", "softmax", "clean", 0, {"attention": "softmax", **settings}))


def test_a_file_that_moves_others_is_refused_before_a_job_runs(tmp_path: Path) -> None:
    path = tmp_path / "lra.toml"
    for table, sentence in (
        ("[Text]\nsoftmax = { mirror = true }", "Text has shift 0, mirror True"),
        ("[Image]\nsoftmax = { shift = 32 }", "shift is 32, expected less than the 32 pixels"),
        ("[Text]\n'first level' = {}", "Text has the rule 'first level', expected it of ListOps alone"),
    ):
        path.write_text(table)
        with pytest.raises(BadInput, match=sentence):
            lra_jobs(path, protocol="clean", seeds=1)


def test_the_loss_is_that_of_what_is_shown() -> None:
    tokens, targets = torch.arange(32).view(2, 16), torch.tensor([0, 1])
    net = torch.nn.Linear(16, 2)
    net.register_forward_pre_hook(lambda _, given: given[0].float())
    torch.manual_seed(0)
    found = token_loss(Settings(shift=1, turn=True), 16)(net, (tokens,), targets)
    torch.manual_seed(0)
    shown = turned(moved(tokens.view(2, 1, 4, 4), shift=1, mirror=False)).flatten(1)
    assert found == torch.nn.functional.cross_entropy(net(shown), targets)


def test_the_published_protocol(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of Text all that is no test is learned from, and the test part is looked at; so it is the best look."""
    looks = []

    def watched(net: torch.nn.Module, inputs: tuple[torch.Tensor, ...], *rest: Any, **more: Any) -> float:
        looks.append(inputs[1])
        return accuracy(net, inputs, *rest, **more)

    monkeypatch.setitem(lra_run.__globals__["READERS"], "Text", drawn)
    monkeypatch.setitem(lra_run.__globals__, "accuracy", watched)
    recipe = {
        "attention": "primal+",
        "steps": 40,
        "batch": 16,
        "every": 10,
        "lr": 3e-3,
        "rank": 2,
        "width": 16,
    }
    made = lra_run(Job("lra", "Text", "primal+", "paper", 0, recipe))
    assert made.figures["train_cases"] == 128
    assert made.figures["test_accuracy"] == made.figures["valid_accuracy"]
    test = drawn("test", None, 0)
    assert all(torch.equal(mask, torch.from_numpy(test.x != 0)) for mask in looks)


def test_the_published_protocol_has_published_variants_alone() -> None:
    jobs = lra_jobs(ROOT / "recipes" / "lra.toml", protocol="paper", seeds=1)
    assert {job.variant for job in jobs} == {"softmax", "primal", "primal+"}
    assert len(jobs) == 12


def test_whole_sequences_have_no_mask() -> None:
    tokens = drawn("train", None, 0)
    (x, mask), y = lra._on(tokens, torch.device("cpu"))
    assert mask.shape == x.shape
    assert y.shape == (64,)
    whole = tokens.take(np.flatnonzero(tokens.lengths == 12))
    assert len(lra._on(whole, torch.device("cpu"))[0]) == 1


@pytest.mark.parametrize(
    ("text", "error", "sentence"),
    [
        ("[Lists.primal]", UnknownName, r"unknown set 'Lists'"),
        ("[Text.prim]", UnknownName, r"unknown variant 'prim'"),
        ("[Text.primal]\nranks = 3", UnknownName, r"unknown entry 'ranks'"),
        ("[Text.primal]\ndilations = '1,x'", BadInput, r"dilations are '1,x', expected such as '1,4,16'"),
        ("[Text", BadInput, r"is not a readable TOML file"),
    ],
)
def test_files_that_are_refused(text: str, error: type[Exception], sentence: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(error, match=sentence):
        lra_jobs(path, protocol="clean", seeds=1)


def test_what_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"none.toml does not exist; by default it is"):
        lra_jobs(tmp_path / "none.toml", protocol="clean", seeds=1)
    with pytest.raises(UnknownName, match=r"unknown protocol 'papers'"):
        lra_jobs(ROOT / "recipes" / "lra.toml", protocol="papers", seeds=1)


def contours(split: str, root: Path | None, count: int) -> Tokens:
    """A few drawn pictures in place of those of a folder."""
    made = draw_tangled(32, seed={"train": 100, "validation": 101, "test": 102}[split], dashes=4)
    x = np.asarray(made.x).reshape(32, -1)
    return Tokens("contours", x, made.y.astype(np.int64), np.full(32, 1024), 256, made.classes)


def test_a_job_with_lessons(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(lra_run.__globals__["READERS"], "Pathfinder", contours)
    (tmp_path / "pathfinder32").mkdir()
    (tmp_path / "pathfinder32" / "hard.npz").touch()
    recipe = {"attention": "none", "window": 3, "dilations": "1,32", "width": 8, "inner": 8, "hidden": 8}
    shown = {"brightness": True, "scale": 0.5, "pooling": "max", "turn": True, "precision": "32"}
    course = {"steps": 4, "batch": 4, "every": 2, "lessons": "2,4", "lesson_steps": 1, "lesson_cases": 6}
    job = Job("lra", "Pathfinder", "kernelhead", "clean", 0, {**recipe, **shown, **course})
    made = lra_run(job, root=tmp_path).figures
    assert (made["train_cases"], made["drawn_cases"]) == (32, 12)
    kept = [each.name for each in (tmp_path / "pathfinder32" / "cache").iterdir()]
    assert sorted(kept) == [f"marked-{grade}-6.npz" for grade in (2, 4)]
    assert lra_run(job, root=tmp_path).figures["test_accuracy"] == made["test_accuracy"]


def test_lessons_grow_and_end_with_the_set(tmp_path: Path) -> None:
    (tmp_path / "pathfinder32").mkdir()
    (tmp_path / "pathfinder32" / "hard.npz").touch()
    train = contours("train", None, 0)
    grades = [3, 4, 5, 6, 7, 9]
    both, lessons = with_lessons(train, "Pathfinder", grades, steps=10, count=5, root=tmp_path)
    assert len(both) == 32 + 6 * 5
    assert np.array_equal(both.x[:32], train.x)
    assert [first for first, _ in lessons] == [0, 10, 20, 30, 40, 50, 60]
    behind = [(places[places >= 32] - 32).tolist() for _, places in lessons]
    assert behind[0] == list(range(5))
    assert behind[4] == list(range(25))  # 3 to 7
    assert behind[5] == list(range(5, 30))  # 4 to 9
    assert behind[6] == list(range(25, 30))
    assert lessons[6][1][:32].tolist() == list(range(32))
    nine = draw_marked(5, seed=9, dashes=9)
    assert np.array_equal(both.x[-5:], np.asarray(nine.images.x).reshape(5, -1))
    assert both.y[-5:].tolist() == nine.images.y.tolist()
    assert both.marks is not None
    assert np.array_equal(both.marks[:32], np.full((32, 1024), -1))
    steps = nine.steps.reshape(5, -1)
    assert np.array_equal(both.marks[-5:], np.where(steps == 9, 20, steps))


def test_drawn_lists_are_short_and_kept(tmp_path: Path) -> None:
    (tmp_path / "listops").mkdir()
    (tmp_path / "listops" / "train.npz").touch()
    train = draw_listops(10, seed=0, shortest=40, longest=90)
    for grade, least in ((12, 4), (60, 16)):
        made = drawn_cases(train, "ListOps", grade, count=5, root=tmp_path)
        assert (made.x.shape, made.classes, made.vocabulary) == ((5, grade), train.classes, 16)
        assert least <= made.lengths.min() <= made.lengths.max() < grade
        assert [listops_value(row) for row in made.x] == made.y.tolist()
        assert made.marks is not None
        assert np.array_equal(made.marks, np.stack([listops_marks(row) for row in made.x]))
        again = drawn_cases(train, "ListOps", grade, count=5, root=tmp_path)
        assert np.array_equal(made.x, again.x)
    kept = [each.name for each in (tmp_path / "listops" / "cache").iterdir()]
    assert sorted(kept) == ["marked-12-5.npz", "marked-60-5.npz"]


def test_lists_have_lessons_before_the_course(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "listops").mkdir()
    (tmp_path / "listops" / "train.npz").touch()
    seen: list[tuple[tuple[int, ...], int, int, bool]] = []

    def read(split: str, root: Path | None, count: int) -> Tokens:
        seed = {"train": 0, "validation": 1, "test": 2}[split]
        return draw_listops(32, seed=seed, shortest=20, longest=60)

    def fit(model: torch.nn.Module, x: Any, y: torch.Tensor, course: Any, **more: Any) -> Any:
        seen.append((tuple(x[0].shape), course.steps, course.batch, "watch" in more))
        return fit_resident(model, x, y, course, **more)

    monkeypatch.setitem(lra_run.__globals__["READERS"], "ListOps", read)
    monkeypatch.setitem(lra_run.__globals__, "fit_resident", fit)
    recipe = {"attention": "none", "window": 3, "width": 8, "inner": 8, "hidden": 8, "precision": "32"}
    course = {"steps": 4, "batch": 4, "every": 2, "lessons": "12,24", "lesson_steps": 3}
    more = {"lesson_cases": 20, "lesson_tokens": 120}
    job = Job("lra", "ListOps", "kernelhead", "clean", 0, {**recipe, **course, **more})
    made = lra_run(job, root=tmp_path).figures
    assert seen == [((20, 12), 3, 10, False), ((20, 24), 3, 5, False), ((32, 60), 4, 4, True)]
    assert (made["train_cases"], made["drawn_cases"]) == (32, 40)
    assert lra_run(job, root=tmp_path).figures["test_accuracy"] == made["test_accuracy"]


@pytest.mark.parametrize("square", [1, 4])
def test_pixels_are_of_mean_zero_and_deviation_one(square: int) -> None:
    train = contours("train", None, 0)
    asked = Settings(attention="none", window=3, width=8, brightness=True, square=square, pooling="max")
    net, seen = asked.model(train), list[torch.Tensor]()
    net.net.embedding.register_forward_pre_hook(lambda _, given: seen.append(given[0]))
    net(torch.from_numpy(train.x))
    assert seen[0].shape == (32, 1024 // square**2, square**2)
    assert abs(float(seen[0].mean())) < 1e-4
    assert abs(float(seen[0].std()) - 1) < 1e-3


@pytest.mark.parametrize(("data", "square"), [("Pathfinder", 2), ("ListOps", 1)])
def test_a_job_with_marks(data: str, square: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second head is trained, and counts for nothing afterwards."""

    def lists(split: str, root: Path | None, count: int) -> Tokens:
        return draw_listops(32, seed={"train": 0, "validation": 1, "test": 2}[split], shortest=20, longest=60)

    for folder, name in (("pathfinder32", "hard.npz"), ("listops", "train.npz")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / name).touch()
    monkeypatch.setitem(lra_run.__globals__["READERS"], data, contours if data == "Pathfinder" else lists)
    changed: list[bool] = []

    def fit(model: Any, x: Any, y: torch.Tensor, course: Any, **more: Any) -> Any:
        before = model.head.weight.detach().clone()
        made = fit_resident(model, x, y, course, **more)
        changed.append(not torch.equal(model.head.weight, before))
        assert x[-1].dtype == torch.int8
        return made

    pictures = {"brightness": True, "square": square, "turn": True} if data == "Pathfinder" else {}
    recipe = {"attention": "none", "window": 3, "width": 8, "inner": 8, "cpu_precision": "bf16"}
    course = {"steps": 4, "batch": 4, "every": 2, "lessons": "8", "lesson_steps": 2, "lesson_cases": 20}
    job = Job("lra", data, "kernelhead", "clean", 0, {**recipe, **course, **pictures})
    plain = lra_run(job, root=tmp_path)
    monkeypatch.setitem(lra_run.__globals__, "fit_resident", fit)
    made = lra_run(replace(job, recipe={**job.recipe, "marks": 0.5}), root=tmp_path)
    assert made.parameters == plain.parameters
    assert made.figures["train_loss"] > plain.figures["train_loss"]
    assert changed == [True] * (1 if data == "Pathfinder" else 2)


@pytest.mark.parametrize(
    ("data", "settings", "said"),
    [
        ("Image", {"lessons": "3,5"}, "Image has lessons '3,5', expected them of ListOps and Pathfinder"),
        ("Pathfinder", {"lessons": "5,3"}, "lessons of Pathfinder are '5,3', expected growing numbers of da"),
        ("Pathfinder", {"lessons": "few"}, "are 'few', expected growing numbers of dashes from 2 to 20"),
        ("Pathfinder", {"lessons": "3,21"}, "are '3,21', expected growing numbers of dashes from 2 to 20"),
        ("ListOps", {"lessons": "7,30"}, "are '7,30', expected growing numbers of tokens from 8 to 2000"),
        ("ListOps", {"lessons": "30", "lesson_cases": 0}, "lesson_cases is 0"),
        (
            "ListOps",
            {"lessons": "30,60", "lesson_cases": 9, "lesson_tokens": 300},
            "has 10 cases, .* at most its 9",
        ),
        (
            "ListOps",
            {"lessons": "30", "lesson_cases": 9, "batch": 12},
            "has 12 cases, expected at most its 9",
        ),
        ("ListOps", {"lesson_tokens": -1}, "lesson_tokens is -1, expected"),
        ("Text", {"brightness": True}, "Text has brightness, expected it of Image and Pathfinder alone"),
        ("Pathfinder", {"square": 2}, "square is 2, brightness False; expected a divisor of 32, and pixels"),
        ("Pathfinder", {"square": 3, "brightness": True}, "square is 3, .* expected a divisor of 32"),
        ("Pathfinder", {"marks": -1.0}, "marks is -1.0, expected a weight of 0 or more"),
        ("Image", {"marks": 1.0}, "Image has marks, expected them of ListOps and Pathfinder alone"),
        (
            "Pathfinder",
            {"lessons": "3,5", "lesson_steps": 9, "steps": 17},
            "has 2 lessons of 9 steps, expected at most its 17 steps in all",
        ),
    ],
)
def test_lessons_and_brightness_that_cannot_be_are_refused(
    data: str, settings: dict[str, object], said: str
) -> None:
    with pytest.raises(BadInput, match=said):
        lra_run(Job("lra", data, "kernelhead", "clean", 0, {"attention": "none", "window": 3, **settings}))


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        ('pooling = "most"', r"lra: Text, kernelhead: SequenceClassifier: unknown pooling 'most'"),
        ('attention = "none,primo"', "lra: Text, kernelhead: .* unknown attention 'primo'"),
        ('attention = "softmax"\nwidth = 65', "lra: Text, .* width 65 does not split into 2 heads"),
        ('attention = "none"\ndropout = 1.5', "lra: Text, .* probability has to be between 0 and 1"),
        ('cpu_precision = "bf8"', r"\[Text.kernelhead\]: Course: unknown precision 'bf8'"),
        ('precision = "b16"', r"\[Text.kernelhead\]: Course: unknown precision 'b16'"),
        ("lr = -1.0", r"\[Text.kernelhead\]: Course: lr is -1.0"),
    ],
)
def test_what_no_job_could_do_is_refused_before_one_runs(entry: str, said: str, tmp_path: Path) -> None:
    recipe = tmp_path / "lra.toml"
    recipe.write_text(f"window = 3\n[Text.kernelhead]\n{entry}\n", encoding="utf-8")
    before = torch.random.get_rng_state()
    with pytest.raises(BadInput, match=said):
        lra_jobs(recipe, protocol="clean", seeds=1)
    assert torch.equal(before, torch.random.get_rng_state())
