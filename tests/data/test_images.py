"""read_images by name and from a folder, its parts, its checksums, and the words for what is wrong."""

import os
import sys
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernelhead.data.images import DIGESTS, Images, Rows, read_images
from kernelhead.data.sources import in_part
from kernelhead.errors import BadInput, MissingExtra, UnknownName

SHARED = os.environ.get("KERNELHEAD_DATA")
needs_shared = pytest.mark.skipif(not SHARED, reason="KERNELHEAD_DATA does not name the folder of data sets")
SIZES = {
    "mnist": (60_000, 10_000, (1, 28, 28)),
    "cifar10-gray": (50_000, 10_000, (1, 32, 32)),
    "cifar10": (8_000, 2_000, (3, 32, 32)),
    "pathfinder32": (7_000, 1_000, (1, 32, 32)),
}


@pytest.fixture(autouse=True)
def _no_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KERNELHEAD_DATA", raising=False)


def pixels(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


def folder(path: Path, **train: Any) -> Path:
    held = {"x": pixels(20, 4, 6), "y": np.arange(20) % 2}
    np.savez(path / "train.npz", **{**held, **train})
    np.savez(path / "test.npz", x=pixels(3, 4, 6, seed=1), y=np.array([1, 0, 1]))
    return path


def expect(root: Path, monkeypatch: pytest.MonkeyPatch, place: str) -> None:
    """Take the checksum of a file as it stands."""
    monkeypatch.setitem(DIGESTS, place, sha256((root / place).read_bytes()).hexdigest()[:16])


def rows(images: Images) -> set[bytes]:
    return {image.tobytes() for image in images.x}


def test_digits_are_bundled() -> None:
    parts = {split: read_images("digits", split=split) for split in ("train", "validation", "test")}
    assert sum(map(len, parts.values())) == 1797
    for part in parts.values():
        assert (part.name, part.channels, part.size, part.classes) == (
            "digits",
            1,
            (8, 8),
            tuple("0123456789"),
        )
        assert (part.x.dtype, part.y.dtype, part.x.min(), part.x.max()) == (np.uint8, np.int64, 0, 255)
        assert set(part.y.tolist()) == set(range(10))
    counts = np.bincount(parts["test"].y)
    assert counts.min() >= 34
    assert counts.max() <= 37


def test_train_and_validation_are_the_training_part_and_the_test_part_is_fixed() -> None:
    whole, test = read_images("digits", validation=0), read_images("digits", split="test")
    for seed in (0, 5):
        train = read_images("digits", seed=seed)
        held_out = read_images("digits", split="validation", seed=seed)
        assert rows(train) | rows(held_out) == rows(whole)
        assert not rows(train) & rows(held_out)
        assert np.array_equal(read_images("digits", split="test", seed=seed, validation=0.5).x, test.x)
    assert not rows(whole) & rows(test)
    assert rows(read_images("digits", seed=5)) != rows(read_images("digits"))
    assert np.array_equal(read_images("digits", seed=5).x, train.x)


@given(
    labels=st.lists(st.integers(0, 3), min_size=2, max_size=40).filter(
        lambda found: len(set(found)) < len(found)
    ),
    share=st.floats(0.01, 0.99),
    seed=st.integers(0, 99),
)
def test_a_share_of_every_class_is_held_out(labels: list[int], share: float, seed: int) -> None:
    y = np.array(labels)
    held_out = in_part("f", y, "validation", validation=share, seed=seed)
    assert np.array_equal(in_part("f", y, "train", validation=share, seed=seed), ~held_out)
    assert in_part("f", y, "test", validation=share, seed=seed).all()
    for label in set(labels):
        count, held = int((y == label).sum()), int(held_out[y == label].sum())
        assert held == min(max(round(share * count), 1), count - 1)


def test_a_folder_is_read(tmp_path: Path) -> None:
    path = folder(tmp_path)
    train, test = read_images(path), read_images(str(path), split="test")
    assert train.x.shape == (18, 1, 4, 6)
    assert len(read_images(path, split="validation")) == 2
    assert (test.x.tolist(), test.y.tolist()) == (pixels(3, 1, 4, 6, seed=1).tolist(), [1, 0, 1])
    assert (train.name, train.classes) == (tmp_path.name, ("0", "1"))
    coloured = folder(tmp_path, x=pixels(20, 3, 4, 6), classes=np.array(["cat", "dog", "eel"]))
    assert read_images(coloured, validation=0).x.tolist() == pixels(20, 3, 4, 6).tolist()
    assert read_images(coloured, split="test").classes == ("cat", "dog", "eel")


def mapped(root: Path, name: str = "imagenet1k") -> Path:
    path = root / name
    path.mkdir()
    for part, count in {"train": 20, "test": 3}.items():
        np.save(path / f"{part}_x.npy", pixels(count, 3, 4, 6, seed=count))
        np.save(path / f"{part}_y.npy", (np.arange(count) % 2).astype(np.int16))
    return path


def test_images_on_disk_stay_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mapped(tmp_path)
    monkeypatch.setenv("KERNELHEAD_DATA", str(tmp_path))
    whole, test = read_images("imagenet1k", validation=0), read_images("imagenet1k", split="test")
    train, held_out = (read_images("imagenet1k", split=split, seed=3) for split in ("train", "validation"))
    assert isinstance(whole.x, np.memmap)
    assert isinstance(test.x, np.memmap)
    assert isinstance(train.x, Rows)
    assert (train.name, train.classes, train.channels, train.size) == ("imagenet1k", ("0", "1"), 3, (4, 6))
    assert (len(train), len(held_out), train.x.nbytes) == (18, 2, 18 * 72)
    assert np.array_equal(whole.x, pixels(20, 3, 4, 6, seed=20))
    together = {each.tobytes() for part in (train, held_out) for each in np.asarray(part.x)}
    assert together == rows(whole)
    taken = train.take([5, 2]).take([1, 0, 1])
    assert isinstance(taken.x, Rows)
    assert np.array_equal(taken.x, np.asarray(train.x)[[2, 5, 2]])
    assert np.array_equal(taken.x[[2]], train.x[[2]])
    assert taken.y.tolist() == train.y[[2, 5, 2]].tolist()
    with pytest.raises(ValueError, match="read-only"):
        test.x[:] = 0


def test_a_folder_may_be_mapped(tmp_path: Path) -> None:
    path = mapped(tmp_path, "mine")
    assert np.array_equal(read_images(path, split="test").x, pixels(3, 3, 4, 6, seed=3))
    assert read_images(path).name == "mine"


def test_broken_maps_are_named(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"read_images: imagenet1k is in no known folder; give `root` or set"):
        read_images("imagenet1k")
    words = r"train_y.npy is not there; put train_x.npy and test_x.npy there, images \(n, c, h, w\) in uint8"
    with pytest.raises(BadInput, match=rf"read_images: .*imagenet1k.{words}"):
        read_images("imagenet1k", root=tmp_path)
    path = mapped(tmp_path)
    (path / "train_x.npy").write_bytes(b"abc")
    with pytest.raises(BadInput, match=r"read_images: .*train_x.npy is not a readable .npy file: "):
        read_images("imagenet1k", root=tmp_path)
    np.save(path / "train_x.npy", np.zeros((20, 3, 4, 6)))
    with pytest.raises(BadInput, match=r"Images 'imagenet1k': `x` is float64 of shape \(20, 3, 4, 6\)"):
        read_images("imagenet1k", root=tmp_path)


def test_images_are_taken_in_order() -> None:
    whole = Images("four", pixels(4, 1, 2, 2), np.arange(4), tuple("abcd"))
    taken = whole.take([2, 0])
    assert (taken.x.tolist(), taken.y.tolist()) == (whole.x[[2, 0]].tolist(), [2, 0])
    assert taken.classes == whole.classes


def test_sheets_are_cut_row_by_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from PIL import Image

    (tmp_path / "cifar10").mkdir()
    gray, colour = pixels(200, 32, 32), pixels(200, 32, 32, 3)
    Image.fromarray(gray.reshape(2, 100, 32, 32).swapaxes(1, 2).reshape(64, 3200)).save(
        tmp_path / "cifar10/gray_test.png"
    )
    Image.fromarray(colour.reshape(2, 100, 32, 32, 3).swapaxes(1, 2).reshape(64, 3200, 3)).save(
        tmp_path / "cifar10/rgb_test2k.webp", lossless=True
    )
    index, y = np.arange(200)[::-1].astype(np.uint16), (np.arange(200) % 7).astype(np.uint8)
    labels = {"y_test": y, "rgb_test_index": index, "classes": np.array(list("abcdefg"))}
    np.savez(tmp_path / "cifar10/labels.npz", **labels)
    for place in ("gray_test.png", "rgb_test2k.webp", "labels.npz"):
        expect(tmp_path, monkeypatch, f"cifar10/{place}")
    read = read_images("cifar10-gray", split="test", root=tmp_path)
    assert np.array_equal(read.x, gray[:, None])
    assert np.array_equal(read.y, y)
    monkeypatch.setenv("KERNELHEAD_DATA", str(tmp_path))
    read = read_images("cifar10", split="test")
    assert np.array_equal(read.x, colour.transpose(0, 3, 1, 2))
    assert np.array_equal(read.y, y[::-1])
    assert read.classes == tuple("abcdefg")
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(MissingExtra, match=r'read_images: needs Pillow.*pip install "kernelhead\[image\]"'):
        read_images("cifar10", split="test")


@needs_shared
@pytest.mark.slow
@pytest.mark.parametrize("name", SIZES)
def test_shared_sets_have_their_sizes(name: str) -> None:
    train, test, shape = SIZES[name]
    parts = {split: read_images(name, split=split, root=SHARED) for split in ("train", "validation", "test")}
    assert len(parts["train"]) + len(parts["validation"]) == train
    assert len(parts["test"]) == test
    assert abs(len(parts["validation"]) - train // 10) <= 5
    for part in parts.values():
        assert part.x.shape[1:] == shape
        assert part.x.flags.c_contiguous
        assert set(part.y.tolist()) == set(range(len(part.classes)))
    assert parts["train"].x[:100].std() > 10


@needs_shared
def test_gray_is_the_colour_in_gray() -> None:
    gray, colour = (read_images(name, split="test", root=SHARED) for name in ("cifar10-gray", "cifar10"))
    index = np.load(Path(str(SHARED)) / "cifar10" / "labels.npz")["rgb_test_index"]
    mixed = np.tensordot(colour.x, [0.2989, 0.587, 0.114], axes=(1, 0))
    assert np.abs(mixed - gray.x[index, 0]).max() < 1.1
    assert np.array_equal(colour.y, gray.y[index])


def test_unknown_names_suggest_the_nearest() -> None:
    with pytest.raises(UnknownName, match="read_images: unknown set of images 'minst', did you mean 'mnist'"):
        read_images("minst")
    with pytest.raises(UnknownName, match="read_images: unknown split 'valid', did you mean 'validation'"):
        read_images("digits", split="valid")


def test_folders_that_are_not_there_are_named(tmp_path: Path) -> None:
    with pytest.raises(
        BadInput, match=r"mnist/mnist.npz is in no known folder; give `root` or set the variable"
    ):
        read_images("mnist")
    with pytest.raises(BadInput, match=r"the data root .*nowhere is not a folder; see the variable KERN"):
        read_images("mnist", root=tmp_path / "nowhere")
    with pytest.raises(BadInput, match=r"mnist.npz cannot be read: No such file"):
        read_images("mnist", root=tmp_path)
    with pytest.raises(BadInput, match=r"nowhere is not a folder with train.npz and test.npz"):
        read_images(tmp_path / "nowhere")


def test_a_file_that_is_another_one_is_named(tmp_path: Path) -> None:
    (tmp_path / "mnist").mkdir()
    (tmp_path / "mnist" / "mnist.npz").write_bytes(b"abc")
    words = r"mnist.npz has the SHA-256 ba7816bf8f01cfea, expected 06af5dfe73b70e3b; the file is another one"
    with pytest.raises(BadInput, match=words):
        read_images("mnist", root=tmp_path)


def test_broken_folders_are_named(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"train.npz is not a readable .npz file: .*No such file"):
        read_images(tmp_path)
    (tmp_path / "train.npz").write_bytes(b"PK")
    with pytest.raises(BadInput, match=r"train.npz is not a readable .npz file"):
        read_images(tmp_path)
    np.savez(tmp_path / "train.npz", x=pixels(2, 4, 6))
    with pytest.raises(BadInput, match=r"train.npz holds x, expected x and y"):
        read_images(tmp_path)
    np.savez(tmp_path / "train.npz", z=pixels(2, 4, 6))
    with pytest.raises(BadInput, match=r"train.npz holds neither, expected x and y"):
        read_images(tmp_path)


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (
            {"x": np.zeros((20, 4, 6))},
            r"`x` is float64 of shape \(20, 1, 4, 6\), expected uint8 \(n, c, h, w\)",
        ),
        ({"x": pixels(20, 4)}, r"`x` is uint8 of shape \(20, 4\), expected uint8"),
        ({"x": pixels(0, 4, 6)}, r"`x` is uint8 of shape \(0, 1, 4, 6\), expected uint8"),
        ({"y": np.zeros(19, int)}, r"`y` is int64 of shape \(19,\), expected whole numbers \(20,\)"),
        (
            {"y": np.zeros(20), "classes": np.array(["a"])},
            r"`y` is float64 of shape \(20,\), expected whole numbers",
        ),
        ({"y": np.arange(20) - 1}, "labels run from -1 to 18, expected 0 to 18"),
        ({"classes": np.array(["a"])}, "labels run from 0 to 1, expected 0 to 0"),
    ],
    ids=["dtype", "axes", "empty", "count", "kind", "negative", "classes"],
)
def test_arrays_that_do_not_fit_are_named(tmp_path: Path, given: dict[str, Any], sentence: str) -> None:
    with pytest.raises(BadInput, match=f"Images '.*': {sentence}"):
        read_images(folder(tmp_path, **given))


def test_shares_that_do_not_fit_are_named(tmp_path: Path) -> None:
    for share in (-0.1, 1.0, float("nan")):
        with pytest.raises(BadInput, match=r"read_images: validation is .*, expected a number in \[0, 1\)"):
            read_images("digits", validation=share)
    with pytest.raises(BadInput, match="a validation share of 0 holds out none of 1438 cases"):
        read_images("digits", split="validation", validation=0)
    with pytest.raises(BadInput, match=r"a validation share of 0\.1 holds out none of 20 cases"):
        read_images(folder(tmp_path, y=np.arange(20)), split="validation")
    with pytest.raises(BadInput, match="read_images: seed is -1, expected a whole number of at least 0"):
        read_images("digits", seed=-1)


@pytest.mark.parametrize(
    ("labels", "sentence"),
    [
        (np.array(["a", "b"]), r"has labels of <U1 \(2,\), expected whole numbers \(n,\)"),
        (np.array([[0], [1]]), r"has labels of int64 \(2, 1\), expected whole numbers \(n,\)"),
        (np.array([0, 2**62]), r"has label 4611686018427387904, expected below 1,000,000"),
    ],
    ids=["words", "a column", "huge"],
)
def test_labels_that_count_no_classes_are_sentences(labels: Any, sentence: str, tmp_path: Path) -> None:
    x = np.zeros((2, 1, 3, 3), np.uint8)
    np.savez(tmp_path / "train.npz", x=x, y=labels)
    with pytest.raises(BadInput, match=rf"train\.npz {sentence}"):
        read_images(tmp_path)
    np.save(tmp_path / "train_x.npy", x)
    np.save(tmp_path / "train_y.npy", labels)
    with pytest.raises(BadInput, match=rf"train_y\.npy {sentence}"):
        read_images(tmp_path)
