"""kernelhead train: from a data set, or a file of recipes, to trained runs, a table and a report."""

import subprocess
import sys
from argparse import SUPPRESS
from pathlib import Path
from typing import Any

from jsonargparse import ArgumentParser, Namespace

from kernelhead.cli.places import FILE, FOLDER
from kernelhead.cli.terminal import note, say_runs, watching
from kernelhead.data import is_event_file
from kernelhead.errors import BadInput, unknown
from kernelhead.records import REPORT, RESULT, read_json
from kernelhead.report import write_report
from kernelhead.training import (
    EventOptions,
    EventRecipe,
    Interrupted,
    Recipe,
    check_recipe,
    event_recipe_from,
    is_main,
    read_recipes,
    recipe_from,
    train_event_run,
    train_run,
)

HELP = "train a classifier of series or of events, or all runs of a recipe file"
EXAMPLE = """kernelhead train JapaneseVowels --attention primal+ --epochs 40 --out runs/mine
kernelhead train series.csv --test new.csv --out runs/mine
kernelhead train badges.csv --events.time mercer
kernelhead train --recipe recipes/japanese_vowels.toml --out runs/vowels"""
OWN = ("data", "recipe", "only", "out", "fresh", "root", "config")


def arguments(parser: ArgumentParser) -> None:
    """What the verb takes."""
    parser.add_argument(
        "data",
        nargs="?",
        help="name of a data set, or a file (.ts, .npz, .csv) or folder; "
        "a .csv with sequence, time and type holds events",
    )
    parser.add_argument("--config", type=FILE, help="JSON file of options, such as a run's config.json")
    parser.add_argument("--recipe", type=FILE, help="TOML file of runs; other options change all of them")
    parser.add_argument("--only", type=str, help="the one run of the recipe file to train")
    parser.add_argument("--out", type=FOLDER, help="run folder, or folder of run folders for a recipe file")
    parser.add_argument(
        "--fresh", action="store_true", help="train anew instead of going on or keeping a result"
    )
    parser.add_argument("--root", type=FOLDER, help="folder of data sets; KERNELHEAD_DATA by default")
    parser.add_class_arguments(Recipe, skip={"data"})
    parser.add_class_arguments(EventOptions, "events")
    for action in parser._actions:
        if action.dest == "events":  # a file for all of them, which --config already is
            action.help = SUPPRESS


def run(chosen: Namespace, given: list[str]) -> int:
    """Train what was asked for; options that were not given keep what the recipe says."""
    options = chosen.as_dict()
    changes = read_json(options["config"]) if options.get("config") else {}
    changes |= {name: value for name, value in options.items() if name not in OWN}
    if options.get("data"):
        changes["data"] = options["data"]
    if not options.get("recipe"):
        if is_event_file(changes.get("data", "")):
            events = event_recipe_from(changes, "train")
            name = f"{Path(events.recipe.data).stem}-{events.options.time}"
            return _train(events, options.get("out") or Path("runs") / name, options)
        _refuse_events(changes)
        recipe = recipe_from(changes, "train")
        folder = (
            options.get("out")
            or Path("runs") / f"{Path(recipe.data).stem}-{recipe.attention.replace(',', '-')}"
        )
        return _train(recipe, folder, options)
    _refuse_events(changes)
    recipes = read_recipes(options["recipe"])
    only = options.get("only")
    if only is not None and only not in recipes:
        raise unknown(str(options["recipe"]), "run", only, recipes)
    out = options.get("out") or Path("runs") / options["recipe"].stem
    if only is not None:
        return _train(recipes[only].changed(changes), out / only, options)
    for recipe in recipes.values():
        check_recipe(recipe.changed(changes), root=options.get("root"))
    return _train_all([*recipes], out, given)


def _refuse_events(changes: dict[str, Any]) -> None:
    """Options of events are for events."""
    if changes.pop("events", None):
        raise BadInput(
            "train: options of events were given, but the data is no file of events: a .csv with columns "
            "sequence, time and type"
        )


def _train(recipe: Recipe | EventRecipe, folder: Path, options: dict[str, Any]) -> int:
    kept = (folder / RESULT).exists() and not options.get("fresh")
    try:
        with watching(recipe.title) as watcher:
            fresh, root = bool(options.get("fresh")), options.get("root")
            if isinstance(recipe, EventRecipe):
                result = train_event_run(recipe, folder, fresh=fresh, watcher=watcher, root=root)
            else:
                result = train_run(recipe, folder, fresh=fresh, watcher=watcher, root=root)
    except Interrupted:
        if is_main():
            note(f"stopped and saved; the same command without --fresh goes on with {folder}")
        return 130
    if not is_main():
        return 0
    write_report([folder], folder / REPORT, title=recipe.title)
    if kept:
        note(f"{folder} was done on {result['date']} and is kept as it is; --fresh trains it anew")
    if options.get("only"):
        note(f"{recipe.title}: {result['seconds_per_epoch']:.3f} s an epoch, run folder {folder}")
        return 0
    say_runs([folder])
    note(f"run folder: {folder}, report: {folder / REPORT}")
    return 0


def _train_all(names: list[str], out: Path, given: list[str]) -> int:
    """Each run in a process of its own, so that its peak memory is its own."""
    for name in names:
        command = [sys.executable, "-m", "kernelhead.cli", "train", *given, "--only", name]
        with subprocess.Popen(command) as child:
            while (code := _waited(child)) is None:
                pass
        if code:
            return code
    folders = [out / name for name in names]
    write_report(folders, out / REPORT, title=out.name)
    say_runs(folders)
    note(f"report: {out / REPORT}")
    return 0


def _waited(child: "subprocess.Popen[bytes]") -> int | None:
    """The child's exit code; None if Ctrl-C came first, which the child got too and will act on."""
    try:
        return child.wait()
    except KeyboardInterrupt:
        return None
