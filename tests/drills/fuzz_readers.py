"""Feed the readers with what atheris finds by coverage, from the known files on: RUNS FOLDER."""

import sys
from collections import Counter
from pathlib import Path

SLOW = ("options .yaml", "weights of series", "weights of events", "series .ts")


def main(runs: int, folder: Path) -> None:
    """Read so many files; the first end that is neither a value nor a sentence of ours stops it."""
    import atheris

    with atheris.instrument_imports(include=["kernelhead.data", "kernelhead.records", "tomllib"]):
        from tests.drills.targets import TARGETS
    names = [name for name in TARGETS if name not in SLOW]
    seen, corpus = Counter[str](), folder / "corpus"
    corpus.mkdir(parents=True)
    for place, name in enumerate(names):
        for number, seed in enumerate(TARGETS[name].seeds()):
            (corpus / f"{place}-{number}").write_bytes(bytes([place]) + seed)

    def read(content: bytes) -> None:
        """The first byte names the reader, the others are its file."""
        name = names[(content[0] if content else 0) % len(names)]
        seen[TARGETS[name].outcome(content[1:], folder / "files" / name)] += 1
        seen[name] += 1
        if seen["read"] + seen["refused"] == runs:
            # The loop below does not come back, so that counts are said from inside.
            print(f"fewest of a reader: {min(seen[each] for each in names):,}")  # noqa: T201
            print(f"{runs:,} ({seen['read']:,} read, {seen['refused']:,} refused)", flush=True)  # noqa: T201

    words = [sys.argv[0], str(corpus), f"-runs={runs}", "-seed=9", "-max_len=8192", "-timeout=60"]
    atheris.Setup([*words, f"-artifact_prefix={folder}/"], read)
    atheris.Fuzz()


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
