"""Classify your own series from CSV files: train, score beside guessing, predict, keep the predictions.

python examples/classify_csv.py                                    # series that are drawn here
python examples/classify_csv.py --train mine.csv --test new.csv    # yours: case, time, label, then channels
"""

import argparse
import csv
import warnings
from collections import Counter
from pathlib import Path

import numpy as np

from kernelhead.data import Series, echo_series, read_series, write_predictions
from kernelhead.estimators import SeriesClassifier


def main() -> None:
    """Read two files, fit, and say how good it is."""
    given = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    given.add_argument("--train", type=Path, help="CSV to learn from; drawn and written to --out by default")
    given.add_argument("--test", type=Path, help="CSV to be tested on; drawn by default")
    given.add_argument("--out", type=Path, default=Path("."), help="folder of what is written")
    given.add_argument("--attention", default="primal+", help="primal, primal+, softmax, linear, ...")
    given.add_argument("--epochs", type=int, default=15)
    given.add_argument("--seed", type=int, default=0)
    chosen = given.parse_args()

    chosen.out.mkdir(parents=True, exist_ok=True)
    train, test = (
        read_series(file or draw(chosen.out / f"{part}.csv", count, seed=count))
        for part, file, count in [("train", chosen.train, 240), ("test", chosen.test, 60)]
    )
    lengths = [len(case) for case in train.cases]
    print(
        f"{len(train)} series of {train.channels} channels and {min(lengths)} to {max(lengths)} time stamps"
    )
    print(f"classes: {', '.join(train.classes)}")

    model = SeriesClassifier(
        chosen.attention, width=32, rank=8, lr=3e-3, epochs=chosen.epochs, random_state=chosen.seed
    )
    model.fit(as_aeon(train), np.array([train.classes.index(label) for label in train.labels or ()]))
    test = test.arranged(train.columns)  # channels are told apart by name
    shares = model.predict_proba(as_aeon(test))
    said = [train.classes[place] for place in shares.argmax(1)]
    write_predictions(chosen.out / "predictions.csv", test.ids, said, shares, train.classes)
    print(f"predictions of {len(test)} series: {chosen.out / 'predictions.csv'}")
    if test.labels:
        right = np.mean([one == other for one, other in zip(said, test.labels, strict=True)])
        often = Counter(test.labels).most_common(1)[0][1] / len(test)
        print(
            f"test accuracy {100 * right:.1f} %, where the most frequent class alone has {100 * often:.1f} %"
        )


def as_aeon(series: Series) -> list[np.ndarray]:
    """Channels before time, as aeon has them."""
    return [case.T for case in series.cases]


def draw(path: Path, count: int, *, seed: int) -> Path:
    """Write drawn series as a CSV file: one row a time stamp."""
    made = echo_series(count, length=40, channels=2, classes=3, seed=seed)
    with path.open("w", newline="", encoding="utf-8") as file:
        rows = csv.writer(file)
        rows.writerow(["case", "time", "label", "left", "right"])
        for number, (case, label) in enumerate(zip(made.cases, made.labels, strict=True)):
            for time, channels in enumerate(case):
                rows.writerow([f"s{number}", time, label, *(f"{value:.4f}" for value in channels)])
    return path


if __name__ == "__main__":
    warnings.filterwarnings("ignore", module="lightning_fabric")
    main()
