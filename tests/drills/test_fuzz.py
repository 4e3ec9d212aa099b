"""Readers of strangers' files: a value or a sentence of ours for any bytes, and never another exception."""

import json
import struct
import subprocess
import sys
import zipfile
from collections import Counter
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hn

from kernelhead.training.store import SUM
from tests.drills.targets import TARGETS, Target, array, arrays

Tell = Callable[[str, object], None]
NAMES = pytest.mark.parametrize("name", TARGETS)
TEXTS = [name for name in TARGETS if not name.endswith((".npz", ".npy", ".xz", ".safetensors"))]
JSONS = [name for name in TARGETS if name.endswith((".json", ".jsonl", "metrics", "result"))]
SLOW = {"options .yaml": 20, "weights of series": 4, "weights of events": 4}  # times as long as the others
NASTY = [
    *(b"nan", b"-inf", b"1e999", b"-0.0", b"9" * 5000, b"0x1", b"1_0", b"1e-320", b"true", b"null", b"[]"),
    *(b"{}", b'""', b"\x00", b"\xef\xbb\xbf", b"\xff\xfe", b"\r", b"\n\n", b",,,,", b'"', b"'", b":", b"?"),
    *(b"[" * 3000, b'{"a":' * 3000, b"a.b.c.d=1\n", b"[a]\n[a]\n", b"1979-05-27T07:32:00Z", b"&a [*a]"),
    *(b"!!python/object/apply:os.getpid []", b"@data\n", b"@timestamps true\n", "é☃".encode(), b"2" * 40),
]
DTYPES = st.sampled_from(["f4", "f8", "f2", "i8", "u1", "?", "c16", "S3", "U3", "M8[s]", "V4", ">i4"])


@st.composite
def mutants(draw: st.DrawFn, seeds: tuple[bytes, ...]) -> bytes:
    """A known file with pieces cut out, doubled, replaced or put in."""
    made = bytearray(draw(st.sampled_from(seeds)))
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, len(made)))
        end = draw(st.integers(start, min(len(made), start + draw(st.sampled_from([0, 1, 8, 200])))))
        piece = draw(st.sampled_from(NASTY) | st.binary(max_size=6) | st.just(bytes(made[start:end] * 2)))
        made[start:end] = piece
    return bytes(made)


KEYS = st.sampled_from(
    [
        *("data", "variant", "protocol", "seed", "recipe_hash", "rows", "epoch", "events", "time", "lr"),
        *("name", "epochs", "test_accuracy", "valid_accuracy", "train_loss", "parameters", "best_epoch", "a"),
    ]
)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=8,
)


@st.composite
def archives(draw: st.DrawFn) -> bytes:
    """An .npz of arrays under the names that readers look for, of any type and shape; sometimes bent."""
    names = ("x", "y", "ids", "labels", "classes", "length", "test_mask", "columns", "x_train", "y_train")
    shapes = hn.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4)
    filled = st.builds(lambda kind, shape: np.zeros(shape, kind), DTYPES, shapes)
    held = draw(st.dictionaries(st.sampled_from(names), filled, max_size=4))
    made = bytearray(arrays(**held))
    if made and draw(st.booleans()):
        made[draw(st.integers(0, len(made) - 1))] ^= 1 << draw(st.integers(0, 7))
    return bytes(made)


@st.composite
def tensor_files(draw: st.DrawFn, seed: bytes) -> bytes:
    """A safetensors file whose header was changed, with its length said rightly or not."""
    (size,) = struct.unpack("<Q", seed[:8])
    header = json.loads(seed[8 : 8 + size])
    told = json.loads(header["__metadata__"].get("facts", "{}"))
    told.pop(SUM, None)  # which would refuse all of them
    header["__metadata__"]["facts"] = json.dumps(told)
    for _ in range(draw(st.integers(1, 3))):
        place = draw(st.sampled_from(sorted(header))) if header else "a"
        change = draw(st.sampled_from(["drop", "value", "shape", "dtype", "facts"]))
        entry = header.get(place)
        if change == "drop":
            header.pop(place, None)
        elif change == "value":
            header[place] = draw(VALUES)
        elif change == "facts" and isinstance(header.get("__metadata__"), dict):
            key = draw(st.sampled_from(["facts", "kernelhead.graft"]))
            header["__metadata__"][key] = _changed_facts(draw, header["__metadata__"].get(key))
        elif isinstance(entry, dict) and "shape" in entry:
            if change == "shape":
                entry["shape"] = draw(st.lists(st.sampled_from([0, 1, 2, 2**31, 2**63, 2**64]), max_size=4))
            else:
                entry["dtype"] = draw(st.sampled_from(["F64", "F8_E4M3", "F4", "BOOL", "U64", "C64", "X"]))
    said = json.dumps(header).encode()
    length = draw(st.sampled_from([len(said), len(said), len(said) + 1, 0, 2**40, 2**63]))
    return struct.pack("<Q", length) + said + seed[8 + size :]


def _changed_facts(draw: st.DrawFn, told: Any) -> str:
    """Facts with one entry changed, somewhere in them."""
    try:
        facts = json.loads(told)
    except (TypeError, ValueError):
        return json.dumps(draw(VALUES))
    if not isinstance(facts, dict) or not facts:
        return json.dumps(draw(VALUES))
    inside = facts
    nested = [each for each in facts.values() if isinstance(each, dict) and each]
    if nested and draw(st.booleans()):
        inside = nested[0]
    huge = st.sampled_from([0, -1, 10**6, 2**40, 2**70, 1e300])
    inside[draw(st.sampled_from(sorted(inside)))] = draw(VALUES | huge)
    return json.dumps(facts)


def drill(name: str, content: st.SearchStrategy[bytes], folder: Path, count: int) -> Counter[str]:
    """Read so many files that a strategy draws."""
    seen: Counter[str] = Counter()

    @settings(max_examples=max(count // SLOW.get(name, 1), 3), derandomize=True, deadline=None, database=None)
    @given(content)
    def run(held: bytes) -> None:
        seen[TARGETS[name].outcome(held, folder)] += 1

    run()
    return seen


def of_all_kinds(name: str, folder: Path, count: int) -> Counter[str]:
    """Mutants of known files, bytes of any kind, and what is shaped as the format has it."""
    seeds = tuple(TARGETS[name].seeds())
    seen = drill(name, mutants(seeds), folder, count)
    seen += drill(name, st.binary(max_size=200), folder, count // 5)
    if name.endswith((".npz", ".npy")):
        seen += drill(name, archives(), folder, count)
    if name in JSONS:
        seen += drill(name, VALUES.map(lambda value: json.dumps(value).encode()), folder, count)
    if "safetensors" in name or name.startswith("weights"):
        seen += drill(name, tensor_files(seeds[0]), folder, count)
    return seen


@NAMES
def test_what_a_reader_is_made_for_is_read(name: str, tmp_path: Path) -> None:
    expected = "refused" if name == "options .yaml" else "read"  # which asks for no epochs
    assert {TARGETS[name].outcome(seed, tmp_path) for seed in TARGETS[name].seeds()} == {expected}


@NAMES
def test_a_few_strange_files_are_read_or_refused(name: str, tmp_path: Path) -> None:
    assert of_all_kinds(name, tmp_path, 10)["refused"]


@pytest.mark.drill
@NAMES
def test_strange_files_are_read_or_refused(name: str, tmp_path: Path, record_property: Tell) -> None:
    seen = of_all_kinds(name, tmp_path, 400)
    assert seen["refused"]
    record_property("files", f"{seen.total():,} ({seen['read']:,} read, {seen['refused']:,} refused)")


def test_another_exception_is_seen(tmp_path: Path) -> None:
    def broken(path: Path) -> None:
        raise KeyError(path.name)

    with pytest.raises(KeyError):
        Target("a.csv", broken, list).outcome(b"", tmp_path)


@pytest.mark.drill
def test_files_that_coverage_leads_to_are_read_or_refused(tmp_path: Path, record_property: Tell) -> None:
    pytest.importorskip("atheris")
    words = [sys.executable, "-m", "tests.drills.fuzz_readers", "60000", str(tmp_path)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=550)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    record_property("files", "; ".join(done.stdout.strip().splitlines()[-2:]))


def test_deep_nesting_and_long_numbers_are_sentences(tmp_path: Path) -> None:
    for name in JSONS:
        for content in (b"[" * 100_000, b'{"a": ' + b"9" * 5000 + b"}", b'{"a":' * 100_000):
            assert TARGETS[name].outcome(content, tmp_path) == "refused"
    for content in (b"a = " + b"[" * 5000, b"a = " + b"9" * 5000, b"a = " + b"{a=" * 5000):
        assert TARGETS["recipes .toml"].outcome(content, tmp_path) == "refused"
    assert TARGETS["options .yaml"].outcome(b"[" * 5000, tmp_path) == "refused"


def test_archives_that_lie_are_sentences(tmp_path: Path) -> None:
    """Encrypted, of an unknown compression, with members of any name, or of absurd shapes."""
    whole = arrays(x=np.zeros((2, 2)))
    encrypted = bytearray(whole)
    encrypted[whole.index(b"PK\x01\x02") + 8] |= 1
    unknown = bytearray(whole)
    unknown[whole.index(b"PK\x01\x02") + 10] = 99
    said = b"{'descr': '<f8', 'fortran_order': False, 'shape': (99999999999, 99999), }".ljust(117) + b"\n"
    absurd = b"\x93NUMPY\x01\x00\x76\x00" + said
    packed = BytesIO()
    with zipfile.ZipFile(packed, "w") as file:
        file.writestr("x.npy", absurd)
        file.writestr("../../../escaped.npy", array(np.eye(2)))
    for name in (each for each in TARGETS if each.endswith(".npz")):
        for content in (bytes(encrypted), bytes(unknown), packed.getvalue()):
            assert TARGETS[name].outcome(content, tmp_path / "a" / "b" / "c") == "refused"
    for name in (each for each in TARGETS if each.endswith(".npy")):
        assert TARGETS[name].outcome(absurd, tmp_path) == "refused"
    assert [*tmp_path.rglob("escaped*")] == []
