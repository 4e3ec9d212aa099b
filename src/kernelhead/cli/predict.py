"""kernelhead predict: labels and probabilities of new series from a trained run."""

from collections import Counter
from pathlib import Path

from jsonargparse import ArgumentParser, Namespace

from kernelhead.cli.places import FILE, FOLDER
from kernelhead.cli.terminal import note, say_json
from kernelhead.data import read_series, write_predictions
from kernelhead.training import is_event_run, load_event_run, load_run

HELP = "labels and probabilities of new series, as CSV"
EXAMPLE = "kernelhead predict runs/mine new.csv --out predictions.csv"


def arguments(parser: ArgumentParser) -> None:
    """What the verb takes."""
    parser.add_argument("run", type=FOLDER, help="run folder")
    parser.add_argument("data", help="data set or file (.ts, .npz, .csv); labels are not needed")
    parser.add_argument("--split", default="test", help="train or test, where the data has both")
    parser.add_argument("--root", type=FOLDER, help="folder of data sets; KERNELHEAD_DATA by default")
    parser.add_argument("--out", type=FILE, default=Path("predictions.csv"), help="file to write")
    parser.add_argument("--json", action="store_true", help="print a JSON record, beside the file")


def run(chosen: Namespace, given: list[str]) -> int:
    """Load, read, score, write."""
    if is_event_run(chosen.run):
        events = load_event_run(chosen.run)
        held = events.read(chosen.data, split=chosen.split, root=chosen.root)
        ids, classes, scores = held.ids, events.classes, events.scores(held)
    else:
        trained = load_run(chosen.run)
        series = read_series(chosen.data, split=chosen.split, root=chosen.root)
        ids, classes, scores = series.ids, trained.classes, trained.scores(series)
    shares = scores.double().softmax(-1)
    labels = [classes[place] for place in shares.argmax(-1).tolist()]
    write_predictions(chosen.out, ids, labels, shares.numpy(), classes)
    if chosen.json:
        counts = Counter(labels)
        labelled = {str(each): counts[each] for each in classes}
        say_json({"cases": len(ids), "labels": labelled, "out": str(chosen.out)})
    else:
        note(f"{len(ids)} predictions in {chosen.out}")
    return 0
