"""kernelhead evaluate: accuracy and loss of a trained run on a labelled set."""

from jsonargparse import ArgumentParser, Namespace

from kernelhead.cli.places import FOLDER
from kernelhead.cli.terminal import say, say_json
from kernelhead.data import has_test_part, read_series
from kernelhead.errors import BadInput
from kernelhead.training import load_run

HELP = "accuracy and loss of a trained run on labelled data"
EXAMPLE = "kernelhead evaluate runs/mine JapaneseVowels --split test"


def arguments(parser: ArgumentParser) -> None:
    """What the verb takes."""
    parser.add_argument("run", type=FOLDER, help="run folder")
    parser.add_argument("data", nargs="?", help="data set or file; the run's own by default")
    parser.add_argument("--split", default="test", help="train or test")
    parser.add_argument("--root", type=FOLDER, help="folder of data sets; KERNELHEAD_DATA by default")
    parser.add_argument("--json", action="store_true", help="print a JSON record")


def run(chosen: Namespace, given: list[str]) -> int:
    """Load, read, score, print."""
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
    accuracy, loss = trained.accuracy_and_loss(series)
    if chosen.json:
        say_json(
            {
                "data": series.name,
                "split": chosen.split,
                "cases": len(series),
                "accuracy": accuracy,
                "loss": loss,
            }
        )
    else:
        say(f"{series.name}, {len(series)} cases: accuracy {accuracy:.2%}, cross-entropy {loss:.4f}")
    return 0
