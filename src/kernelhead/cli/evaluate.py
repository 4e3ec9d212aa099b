"""kernelhead evaluate: accuracy and loss of a trained run on a labelled set."""

from jsonargparse import ArgumentParser, Namespace

from kernelhead.cli.places import FOLDER
from kernelhead.cli.terminal import say, say_json
from kernelhead.data import has_test_part, read_series
from kernelhead.errors import BadInput
from kernelhead.training import is_event_run, load_event_run, load_run

HELP = "accuracy and loss of a trained run on labelled data"
EXAMPLE = """kernelhead evaluate runs/mine
kernelhead evaluate runs/mine labelled.csv --json"""


def arguments(parser: ArgumentParser) -> None:
    """What the verb takes."""
    parser.add_argument("run", type=FOLDER, help="run folder")
    parser.add_argument("data", nargs="?", help="data set or file; the run's own by default")
    parser.add_argument("--split", default="test", help="train or test")
    parser.add_argument("--root", type=FOLDER, help="folder of data sets; KERNELHEAD_DATA by default")
    parser.add_argument("--json", action="store_true", help="print a JSON record")


def run(chosen: Namespace, given: list[str]) -> int:
    """Load, read, score, print."""
    name, cases, accuracy, loss = _of_events(chosen) if is_event_run(chosen.run) else _of_series(chosen)
    if chosen.json:
        say_json({"data": name, "split": chosen.split, "cases": cases, "accuracy": accuracy, "loss": loss})
    else:
        say(f"{name}, {cases} cases: accuracy {accuracy:.2%}, cross-entropy {loss:.4f}")
    return 0


def _of_events(chosen: Namespace) -> tuple[str, int, float, float]:
    """Name, number of questions, accuracy and loss."""
    trained = load_event_run(chosen.run)
    events = trained.read(chosen.data, split=chosen.split, root=chosen.root)
    return events.name, len(trained.questions(events)), *trained.accuracy_and_loss(events)


def _of_series(chosen: Namespace) -> tuple[str, int, float, float]:
    """Name, number of cases, accuracy and loss."""
    trained = load_run(chosen.run)
    recipe = trained.recipe
    own = recipe.test if recipe.test and chosen.split == "test" else recipe.data
    if (
        chosen.data is None
        and chosen.split == "test"
        and not (recipe.test or has_test_part(own, root=chosen.root))
    ):
        raise BadInput(f"evaluate: {own} has no test part; name labelled data, or say --split train")
    series = read_series(chosen.data or own, split=chosen.split, root=chosen.root)
    return series.name, len(series), *trained.accuracy_and_loss(series)
