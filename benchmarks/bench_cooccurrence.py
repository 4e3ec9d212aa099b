"""What do the pairs of words of a stream of 100 million tokens cost to count, in time and in memory?"""

import resource
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.harness import Bench
from benchmarks.run import main
from kernelhead.data import BREAK, choose_words, count_words, token_blocks
from kernelhead.kernels import association, count_pairs

BLOCK = 1 << 20
SENTENCE = 25  # words of a sentence, in the mean


def measure(tokens: int, vocabulary: int, window: int, source: str) -> Iterator[dict[str, Any]]:
    """Count and associate a stream, in a fresh process: peak memory never falls within one.

    Words are drawn by Zipf's law, each for itself, so that there are more distinct pairs than in a language.
    The "stream" is drawn block by block, in time that does not count; the "file" is read twice.
    """
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        yield pool.submit(counted, tokens, vocabulary, window, source).result()


def counted(tokens: int, vocabulary: int, window: int, source: str) -> dict[str, Any]:
    """One row: seconds of the processor, tokens in a second, distinct pairs, and memory above the start."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "text.txt"
        if source == "file":
            write_text(path, tokens, vocabulary)
        before, started, drawing = _peak(), time.process_time(), [0.0]
        if source == "file":
            words = choose_words(count_words(path))
            counts = count_pairs(token_blocks(path, words), len(words), window=window)
        else:
            counts = count_pairs(_timed(drawn(tokens, vocabulary), drawing), vocabulary, window=window)
        seconds = time.process_time() - started - drawing[0]
        counted_mib = _peak() - before
        pairs = int(counts.nnz)
        association(counts)
        return {
            "seconds": seconds,
            "tokens_a_second": tokens / seconds,
            "pairs": pairs,
            "peak_mib": counted_mib,
            "peak_mib_associated": _peak() - before,
            "stream_mib": tokens * 4 / 2**20 if source == "stream" else path.stat().st_size / 2**20,
        }


def drawn(tokens: int, vocabulary: int) -> Iterator[NDArray[np.int32]]:
    """Blocks of words by Zipf's law, a border after each sentence; the same for the same numbers."""
    rates = 1 / (np.arange(vocabulary) + 2.7)
    bounds, draws = np.cumsum(rates / rates.sum()), np.random.Generator(np.random.Philox(0))
    for first in range(0, tokens, BLOCK):
        count = min(BLOCK, tokens - first)
        block = np.searchsorted(bounds, draws.random(count)).astype(np.int32)
        block[:: SENTENCE + 1] = BREAK
        yield np.minimum(block, vocabulary - 1)


def write_text(path: Path, tokens: int, vocabulary: int) -> None:
    """The same words as a text, a sentence on a line."""
    names = np.array([f"w{place}" for place in range(vocabulary)] + ["\n"])
    with path.open("w", encoding="utf-8") as file:
        for block in drawn(tokens, vocabulary):
            file.write(" ".join(names[block].tolist()))


def _timed(blocks: Iterator[NDArray[np.int32]], spent: list[float]) -> Iterator[NDArray[np.int32]]:
    while True:
        started = time.process_time()
        block = next(blocks, None)
        spent[0] += time.process_time() - started
        if block is None:
            return
        yield block


def _peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10


BENCH = Bench(
    question=__doc__,
    gate=("tests/kernels/test_cooccurrence.py", "tests/data/test_corpus.py"),
    cells=[
        {"tokens": tokens, "vocabulary": 20_000, "window": 5, "source": source}
        for source, tokens in (
            ("stream", 10_000_000),
            ("stream", 30_000_000),
            ("stream", 100_000_000),
            ("file", 10_000_000),
        )
    ],
    measure=measure,
    device="cpu",
    tiny=[
        {"tokens": 20_000, "vocabulary": 100, "window": 2, "source": source} for source in ("stream", "file")
    ],
)

if __name__ == "__main__":
    main("cooccurrence")
