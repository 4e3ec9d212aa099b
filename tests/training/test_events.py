"""Questions about events, the field of events, and runs on them into folders and back."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from kernelhead.data import Events
from kernelhead.errors import BadInput, CheckpointError, UnknownName
from kernelhead.models import EventModel
from kernelhead.records import CONFIG, MAPS, METRICS, RESULT, SPECTRUM, WEIGHTS, read_lines
from kernelhead.rng import seeded
from kernelhead.training import (
    Course,
    EventOptions,
    Questions,
    Watcher,
    fit_events,
    fit_resident,
    load_run,
    markdown,
)
from kernelhead.training import event_recipe_from as recipe_of
from kernelhead.training.event_runs import _built, is_event_run, load_event_run, train_event_run
from kernelhead.training.events import EVENTS_PAGE, Settings, event_jobs, event_run
from kernelhead.training.grid import Job
from kernelhead.training.settings import settings_from
from kernelhead.training.store import save_tensors
from tests.training.tiny_events import drawn, in_turn, write

RECIPES = Path(__file__).parents[2] / "recipes" / "events.toml"
TINY: dict[str, Any] = {"width": 8, "heads": 2, "epochs": 3, "batch": 16, "accelerator": "cpu"}
SMALL: dict[str, Any] = {"width": 8, "time_width": 8, "heads": 2, "steps": 30, "batch": 16, "every": 15}


@pytest.mark.parametrize("at", ["last", "target"])
@pytest.mark.parametrize("length", [1, 3, 9])
def test_every_prefix_is_asked_about_once(at: str, length: int) -> None:
    events = Events.of([([0, 1, 3, 7], "abcb"), ([2], "a"), ([5, 6], "ca")], "few")
    made = Questions.of_next(events, length=length, at=at)
    types, times, asked, mask = made.windows(*made.inputs)
    wanted = [
        (t[:k], kinds[:k], t[k] if at == "target" else t[k - 1], kinds[k])
        for t, kinds in events
        for k in range(1, len(t))
    ]
    assert len(made) == len(wanted) == 4
    for row, (before, kinds, when, answer) in enumerate(wanted):
        real = mask[row]
        assert times[row][real].tolist() == before[-length:].tolist()
        assert [events.kinds[each] for each in types[row][real]] == kinds[-length:]
        assert float(asked[row]) == when
        assert events.kinds[made.answers[row]] == answer


def test_whole_sequences_are_asked_about_when_they_say() -> None:
    events = drawn(5)
    made = Questions.of_last(events, events.kinds, length=4)
    _, times, asked, mask = made.windows(*made.inputs)
    assert bool(mask.all())
    assert asked.tolist() == events.asked.tolist()
    assert times.tolist() == [each[-4:].tolist() for each in events.times]
    assert [events.kinds[each] for each in made.answers] == [*events.labels]
    late = Questions.of_last(events, events.kinds, length=4, asked=False)
    assert late.asked.tolist() == [each[-1] for each in events.times]
    assert Questions.of_last(replace(events, labels=None), (), length=4).answers.tolist() == [-1] * 5


def test_a_model_learns_from_questions_that_are_gathered() -> None:
    events = in_turn()
    made = Questions.of_next(events, length=3, at="target")
    with seeded(0):
        model = EventModel(3, 3, width=16, time_width=8, heads=2)
    fit_resident(model, made.inputs, made.answers, Course(100, 32, lr=1e-2), loss=made.loss)
    accuracy, loss = made.accuracy_and_loss(model)
    assert accuracy == 1
    assert loss < 0.1
    assert made.scores(model).shape == (160, 3)


def test_words_of_questions() -> None:
    events = Events.of([([0.0], "a")], "one")
    with pytest.raises(BadInput, match="no sequence of 'one' has two events, so none comes next"):
        Questions.of_next(events, length=3)
    with pytest.raises(UnknownName, match="Questions: unknown at 'now'"):
        Questions.of_next(events, length=3, at="now")
    with pytest.raises(BadInput, match="Questions: length is 0"):
        Questions.of_last(events, (), length=0)
    with pytest.raises(BadInput, match="one: sequence 0 has label 'x', expected one of a, b"):
        Questions.of_last(replace(events, labels=("x",)), ("a", "b"), length=1)


def test_the_file_of_the_house() -> None:
    jobs = event_jobs(RECIPES, protocol="clean", seeds=3)
    assert len(jobs) == 2 * 16 * 3
    assert {job.data for job in jobs} == {"lag lookup", "StackOverflow"}
    assert {job.variant for job in jobs} <= {*EVENTS_PAGE.variants}
    for claim in EVENTS_PAGE.claims:
        assert {claim.variant, claim.against} <= {job.variant for job in jobs}
    for job in jobs[::3]:
        settings = settings_from(Settings, job.key, job.recipe)
        assert (settings.attention == "primal") == job.variant.endswith("-primal")
        model = EventModel(2, 2, time=settings.time, time_width=settings.time_width, longest=3)
        assert model.blocks[0].attention.time.unit == "days"


@pytest.mark.parametrize(
    "options", [{}, {"time": "mercer", "time_width": 22}, {"attention": "primal", "eta": 0.1}], ids=str
)
def test_a_job(options: dict[str, Any]) -> None:
    recipe = {**SMALL, "cases": 50, "length": 24, **options}
    job = Job("events", "lag lookup", "mine", "clean", 0, recipe)
    made = event_run(job)
    assert 0 < made.figures["test_accuracy"] < 1
    assert made.figures["train_questions"] == 50
    assert made.figures["test_questions"] == 10
    assert event_run(job).figures["test_loss"] == made.figures["test_loss"]


def test_a_job_on_badges(monkeypatch: pytest.MonkeyPatch) -> None:
    def read(name: str, *, split: str, root: Path | None) -> Events:
        return in_turn(seed={"train": 0, "validation": 1, "test": 2}[split])

    monkeypatch.setitem(event_run.__globals__, "read_events", read)
    recipe = {**SMALL, "length": 4, "steps": 150, "lr": 1e-2}
    made = event_run(Job("events", "StackOverflow", "bochner", "clean", 0, recipe))
    assert made.figures["train_questions"] == 160
    assert made.figures["test_accuracy"] > 0.95
    blind = event_run(Job("events", "StackOverflow", "none", "clean", 0, {**recipe, "time": "none"}))
    assert blind.figures["test_accuracy"] < 0.7


@pytest.mark.gpu
@pytest.mark.parametrize("options", [{}, {"attention": "primal", "eta": 0.1}, {"time": "position"}], ids=str)
def test_a_step_is_one_graph_on_a_device(options: dict[str, Any]) -> None:
    recipe = {**SMALL, "cases": 100, "length": 24, **options}
    made = event_run(Job("events", "lag lookup", "mine", "clean", 0, recipe))
    assert made.figures["peak_gib"] > 0
    assert 0 < made.figures["test_accuracy"] < 1


def test_the_page_has_a_verdict_for_each_claim() -> None:
    row = {"data": "StackOverflow", "protocol": "clean", "status": "done"}
    figures = {"position": (0.46, 0.47), "bochner": (0.49, 0.492), "fixed": (0.488, 0.494)}
    rows = [
        {**row, "variant": name, "figures": {"test_accuracy": each, "test_loss": 1.5, "steps_a_second": 9.0}}
        for name, pair in figures.items()
        for each in pair
    ]
    page = markdown(EVENTS_PAGE, rows)
    assert "| Time is better than position: Bochner | StackOverflow | +2.6 | 1.0 | holds |" in page
    assert "fixed random one | StackOverflow | +0.0 | 0.6 | cannot be told |" in page


def run_of(data: Path, **changes: Any) -> Any:
    options = changes.pop("events", {})
    return recipe_of({"data": str(data), **TINY, **changes, "events": {"time_width": 8, **options}}, "test")


def test_a_run_of_labels_there_and_back(tmp_path: Path) -> None:
    made = run_of(
        write(tmp_path / "train.csv", drawn()), test=str(write(tmp_path / "test.csv", drawn(10, 1)))
    )
    told: list[dict[str, Any]] = []
    result = train_event_run(made, tmp_path / "run", watcher=Watcher(epoch=told.append))
    assert {path.name for path in (tmp_path / "run").iterdir()} == {
        CONFIG,
        METRICS,
        RESULT,
        SPECTRUM,
        MAPS,
        WEIGHTS,
    }
    assert (result["train_cases"] + result["valid_cases"], result["test_cases"]) == (40, 10)
    assert 6 <= result["valid_cases"] <= 10
    rows = read_lines(tmp_path / "run" / METRICS)
    assert [row["epoch"] for row in rows] == [row["epoch"] for row in told] == [1, 2, 3]
    assert min(rows, key=lambda row: row["valid_loss"])["epoch"] == result["best_epoch"]
    assert is_event_run(tmp_path / "run")
    loaded = load_event_run(tmp_path / "run")
    test = loaded.read(None, split="test")
    assert loaded.accuracy_and_loss(test) == (result["test_accuracy"], result["test_loss"])
    assert loaded.scores(test).shape == (10, 3)
    assert loaded.options.target == "label"
    assert loaded.options.shortest > 0
    assert train_event_run(made, tmp_path / "run") == result
    before = (tmp_path / "run" / WEIGHTS).read_bytes()
    train_event_run(made, tmp_path / "run", fresh=True)
    assert (tmp_path / "run" / WEIGHTS).read_bytes() == before
    with pytest.raises(BadInput, match="holds a run on events; evaluate, predict and report read it"):
        load_run(tmp_path / "run")
    with pytest.raises(BadInput, match=r"holds a run of another recipe \(seed 0 -> 1\)"):
        train_event_run(
            run_of(tmp_path / "train.csv", test=str(tmp_path / "test.csv"), seed=1), tmp_path / "run"
        )


@pytest.mark.parametrize(
    ("options", "width"),
    [
        ({}, 32),
        ({"time": "mercer"}, 44),
        ({"time": "mercer", "mix": "add"}, 33),
        ({"time": "mercer", "harmonics": 3, "time_width": 7}, 7),
        ({"time": "published_mercer"}, 32),
    ],
    ids=str,
)
def test_the_width_of_a_time_fits_where_none_is_said(options: dict[str, Any], width: int) -> None:
    periods = {"shortest": 1.0, "longest": 9.0}
    made = recipe_of(
        {"data": "log.csv", "width": 33 if width == 7 else 32, "events": {**periods, **options}}, "test"
    )
    assert _built(made.recipe, made.options, 3, 3).blocks[0].attention.time.width == width


def test_a_run_of_next_types(tmp_path: Path) -> None:
    path = write(tmp_path / "turns.csv", in_turn(), labels=False)
    result = train_event_run(
        run_of(path, epochs=1, events={"at": "target", "unit": "hours"}), tmp_path / "run"
    )
    assert (result["test_accuracy"], result["classes"]) == (None, 3)
    loaded = load_event_run(tmp_path / "run")
    assert loaded.classes == ("a", "b", "c")
    with pytest.raises(
        BadInput, match="turns: the model was trained to know when the next event comes; say when"
    ):
        loaded.scores(loaded.read(str(path), split="test"))
    events = replace(in_turn(3), asked=np.full(3, 99.0), unit="hours")
    assert loaded.scores(events).shape == (3, 3)
    with pytest.raises(BadInput, match=r"turns\.csv has no test part; name a file of events"):
        loaded.read(None, split="test")
    assert len(loaded.questions(loaded.read(None, split="train"))) == 160


def test_times_are_read_in_the_unit_of_the_run(tmp_path: Path) -> None:
    trained, _ = fit_events(in_turn(), None, run_of(tmp_path, events={"unit": "days"}))
    days = in_turn(3)
    hours = days.converted("hours")
    assert torch.allclose(trained.scores(hours), trained.scores(days), atol=1e-6)


def test_words_of_runs(tmp_path: Path) -> None:
    path = write(tmp_path / "log.csv", drawn(), labels=True)
    with pytest.raises(
        BadInput, match="test: pooling is 'last', which a run on events does not heed; leave it out"
    ):
        run_of(path, pooling="last")
    with pytest.raises(UnknownName, match="test: unknown precision '64-true'"):
        run_of(path, precision="64-true")
    with pytest.raises(UnknownName, match="test, events: unknown entry 'tim', did you mean 'time'"):
        run_of(path, events={"tim": "x"})
    with pytest.raises(UnknownName, match="EventOptions: unknown target 'labels', did you mean 'label'"):
        EventOptions(target="labels")
    with pytest.raises(UnknownName, match="EventOptions: unknown at 'now'"):
        EventOptions(at="now")
    with pytest.raises(BadInput, match=r"EventOptions: shortest is -1\.0, longest 0\.0; expected 0 or more"):
        EventOptions(shortest=-1.0)
    with pytest.raises(
        BadInput, match="turns: has no labels, so that they cannot be learned; say target next"
    ):
        EventOptions(target="label").settled(in_turn())
    one = replace(drawn(), labels=("x",) * 40)
    with pytest.raises(BadInput, match="lag lookup: all answers are 'x', expected two classes"):
        fit_events(one, None, run_of(path))
    trained, _ = fit_events(drawn(), None, run_of(path, epochs=1))
    with pytest.raises(BadInput, match="lag lookup: has no labels"):
        trained.questions(replace(drawn(), labels=None))
    with pytest.raises(CheckpointError, match=r"holds no weights\.safetensors: not a run folder"):
        load_event_run(tmp_path)
    assert not is_event_run(tmp_path)


def test_a_broken_folder(tmp_path: Path) -> None:
    save_tensors(tmp_path / WEIGHTS, {"a": torch.zeros(1)}, {"events": {}, "kinds": []})
    with pytest.raises(CheckpointError, match="lacks what a run stores with its weights: 'classes'"):
        load_event_run(tmp_path)


def test_options_settle_on_events_of_one_time() -> None:
    events = Events.of([([3.0, 3.0], "ab"), ([1.0], "a")], "at once")
    made = EventOptions().settled(events)
    assert (made.target, made.shortest, made.longest) == ("next", 2.0, 2.0)
