"""Corpora of bytes: known texts, sources, folders and files, their parts, and the words."""

import lzma
import os
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest

from kernelhead.data import read_bytes, read_corpus
from kernelhead.data.text import DIGESTS
from kernelhead.errors import BadInput, UnknownName

SHARED = os.environ.get("KERNELHEAD_DATA")
needs_shared = pytest.mark.skipif(not SHARED, reason="KERNELHEAD_DATA does not name the folder of data sets")
PARTS = ("train", "validation", "test")


def test_a_file_is_cut_into_twentieths(tmp_path: Path) -> None:
    path = tmp_path / "a.dat"
    path.write_bytes(bytes(range(200)))
    found = [read_corpus(path, split=part) for part in PARTS]
    assert [len(part) for part in found] == [180, 10, 10]
    assert np.concatenate(found).tolist() == [*range(200)]
    assert read_corpus(str(path), most=7).tolist() == [*range(7)]


def test_files_of_a_folder_belong_to_one_part(tmp_path: Path) -> None:
    (tmp_path / "more").mkdir()
    for place in range(25):
        folder = tmp_path if place < 21 else tmp_path / "more"
        (folder / f"{place:02}.txt").write_text(chr(ord("a") + place))
    (tmp_path / "picture.png").write_text("not text")
    train, validation, test = (read_corpus(tmp_path, split=part).tobytes().decode() for part in PARTS)
    assert train == "\n".join("abcdefghijklmnopqr" + "uvwxy")
    assert (validation, test) == ("s", "t")
    assert read_corpus(tmp_path, most=3).tobytes() == b"a\nb"


def test_sources_of_this_python() -> None:
    assert len(read_corpus("python", most=5000)) == 5000
    assert b"import" in read_corpus("python", split="test", most=20_000).tobytes()


def test_wikitext_is_read_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "wikitext2").mkdir()
    for part, text in (("train", " = A = \n"), ("valid", "b"), ("test", "c")):
        packed, place = lzma.compress(text.encode()), f"wikitext2/{part}.txt.xz"
        (tmp_path / place).write_bytes(packed)
        monkeypatch.setitem(DIGESTS, place, sha256(packed).hexdigest()[:16])
    found = [read_corpus("wikitext2", split=part, root=tmp_path).tobytes() for part in PARTS]
    assert found == [b" = A = \n", b"b", b"c"]


@needs_shared
def test_the_shared_texts() -> None:
    assert len(read_corpus("wikitext2", root=SHARED)) == 10_797_148
    assert np.array_equal(read_corpus("tinyshakespeare", root=SHARED), read_bytes(root=SHARED))


def test_what_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KERNELHEAD_DATA", raising=False)
    with pytest.raises(
        BadInput, match=r"read_corpus: .*nowhere is no file, no folder and none of tinyshakesp"
    ):
        read_corpus(tmp_path / "nowhere")
    with pytest.raises(
        BadInput, match=r"read_corpus: the train part of .* is empty, expected a byte or more"
    ):
        read_corpus(tmp_path)
    (tmp_path / "empty.txt").touch()
    with pytest.raises(BadInput, match=r"the train part of .*empty.txt is empty"):
        read_corpus(tmp_path / "empty.txt")
    with pytest.raises(UnknownName, match="read_corpus: unknown split 'valid'"):
        read_corpus("python", split="valid")
    with pytest.raises(BadInput, match="read_corpus: most is 0"):
        read_corpus("python", most=0)
    with pytest.raises(BadInput, match="KERNELHEAD_DATA"):
        read_corpus("wikitext2")
