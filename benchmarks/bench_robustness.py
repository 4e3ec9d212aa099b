"""Which attention withstands attacks, corruptions, contamination and swapped words best?"""

from collections.abc import Iterator
from typing import Any

from benchmarks.harness import Bench, Cell
from benchmarks.robust_images import image_figures
from benchmarks.robust_rows import ROWS
from benchmarks.robust_words import word_figures
from benchmarks.run import main

SEEDS = (0, 1, 2)
PARTS = {"images": image_figures, "words": word_figures}
# The language models pursue in all layers or in none.
TEXT_ROWS = ("softmax", "symmetric", "rpc published, all layers", "rpc corrected, all layers", "primal")


def measure(part: str, data: str, row: str, seed: int) -> Iterator[dict[str, Any]]:
    """Train one row with one seed and try it; every row of a part has the same recipe."""
    return PARTS[part](data, row, seed)


def cells(images: str, words: str, seeds: tuple[int, ...]) -> list[dict[str, Any]]:
    """All rows with the first seed, then with the next, so that a run that is cut short has whole columns."""
    return [
        {"part": part, "data": data, "row": row, "seed": seed}
        for part, data, rows in (("images", images, [*ROWS]), ("words", words, [*TEXT_ROWS]))
        for seed in seeds
        for row in rows
    ]


def need_not_be_alone(cell: Cell) -> bool:
    """What training costs is told by the first seed alone."""
    return bool(cell["seed"] != SEEDS[0])


BENCH = Bench(
    question=__doc__,
    gate=("tests/ops/triton/test_rpc.py", "tests/benchmarks/test_robustness.py"),
    cells=cells("cifar10-gray", "wikitext2", SEEDS),
    measure=measure,
    folder="results",
    tiny=cells("digits", "chain", SEEDS[:2]),
    beside=need_not_be_alone,
)

if __name__ == "__main__":
    main("robustness")
