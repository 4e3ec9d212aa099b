"""Labelled images: their type, and the sets that are read by name or from a folder."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from io import BytesIO
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernelhead.data.series import Indices
from kernelhead.data.sources import check_part, in_part, read_checked, root_of
from kernelhead.errors import BadInput, missing_extra, unknown

WHO = "read_images"
MOST_CLASSES = 1_000_000  # of labels without names
# First 16 hexadecimal digits of the SHA-256 of every file.
DIGESTS = {
    "mnist/mnist.npz": "06af5dfe73b70e3b",
    "pathfinder32/hard.npz": "b33635f104571e6a",
    "cifar10/labels.npz": "d25a012ae49aa110",
    "cifar10/gray_train.png": "b968a42602b4f6b3",
    "cifar10/gray_test.png": "fe58e29e68e897c8",
    "cifar10/rgb_train8k.webp": "02e813f46a29bba9",
    "cifar10/rgb_test2k.webp": "c1ea071be6f1c806",
}
DIGITS = tuple("0123456789")
SIDE, ACROSS = 32, 100  # pixels of an image and images in a row of a sheet


@dataclass(frozen=True, eq=False)
class Rows:
    """Some rows of an array on disk, in an order; they are read when they are asked for, and not kept.

    Args:
        source: such as a map of a file.
        index: places of the rows in it.

    Example:
        >>> rows = Rows(np.arange(12, dtype=np.uint8).reshape(4, 3), np.array([3, 1, 0]))
        >>> rows.shape, rows[[2, 0]].tolist(), rows.take([1]).index.tolist()
        ((3, 3), [[0, 1, 2], [9, 10, 11]], [1])
    """

    source: NDArray[np.uint8]
    index: NDArray[np.integer[Any]]

    def __len__(self) -> int:
        """How many rows there are."""
        return len(self.index)

    def __getitem__(self, indices: Indices) -> NDArray[np.uint8]:
        """Read rows by their places here."""
        return self.source[self.index[indices]]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        """Read all rows."""
        return np.asarray(self.source[self.index], dtype=dtype)

    @property
    def shape(self) -> tuple[int, ...]:
        """Of all rows together."""
        return (len(self), *self.source.shape[1:])

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return self.source.ndim

    @property
    def dtype(self) -> np.dtype[Any]:
        """Of an entry."""
        return self.source.dtype

    @property
    def nbytes(self) -> int:
        """What all rows take when they are read."""
        return prod(self.shape) * self.dtype.itemsize

    def take(self, indices: Indices) -> "Rows":
        """Rows by their places here, not read yet."""
        return Rows(self.source, self.index[indices])


@dataclass(frozen=True, eq=False)
class Images:
    """Labelled images of one size.

    Shapes: x (n, c, h, w), 0 to 255; y (n,), positions in `classes`.

    Args:
        name: what the set is called.
        x: the pixels; of a set that is not read into memory a map of its file, or rows of one.
        y: the labels.
        classes: one name a class.

    Raises:
        BadInput: pixels or labels are of another kind or shape, or a label has no class.

    Example:
        >>> pair = Images("pair", np.zeros((2, 1, 4, 4), np.uint8), np.array([0, 1]), ("no", "yes"))
        >>> len(pair), pair.channels, pair.size
        (2, 1, (4, 4))
    """

    name: str
    x: NDArray[np.uint8] | Rows
    y: NDArray[np.int64]
    classes: tuple[str, ...]

    def __post_init__(self) -> None:
        who, x, y = f"Images {self.name!r}", self.x, self.y
        if x.ndim != 4 or 0 in x.shape or x.dtype != np.uint8:
            raise BadInput(
                f"{who}: `x` is {x.dtype} of shape {x.shape}, expected uint8 (n, c, h, w), none of them 0"
            )
        if y.shape != x.shape[:1] or y.dtype.kind not in "iu":
            raise BadInput(f"{who}: `y` is {y.dtype} of shape {y.shape}, expected whole numbers ({len(x)},)")
        if y.min() < 0 or y.max() >= len(self.classes):
            raise BadInput(
                f"{who}: labels run from {y.min()} to {y.max()}, expected 0 to {len(self.classes) - 1}"
            )
        object.__setattr__(self, "y", y.astype(np.int64))

    def __len__(self) -> int:
        """How many images there are."""
        return len(self.x)

    @property
    def channels(self) -> int:
        """Channels of a pixel, c."""
        return int(self.x.shape[1])

    @property
    def size(self) -> tuple[int, int]:
        """Height and width."""
        return int(self.x.shape[2]), int(self.x.shape[3])

    def take(self, indices: Indices) -> "Images":
        """The images at these positions, in this order."""
        x = Rows(self.x, np.arange(len(self))) if isinstance(self.x, np.memmap) else self.x
        return replace(self, x=x.take(indices) if isinstance(x, Rows) else x[indices], y=self.y[indices])


def read_images(
    name: str | Path,
    *,
    split: str = "train",
    root: str | Path | None = None,
    validation: float = 0.1,
    seed: int = 0,
) -> Images:
    """Read one part of a set of labelled images.

    - ``mnist``: 60,000 and 10,000 of 28 by 28.
    - ``cifar10-gray``: 50,000 and 10,000 of 32 by 32 in grey; ``cifar10``: 8,000 and 2,000 of them in
      colour. Both need the extra `image`.
    - ``pathfinder32``: 7,000 and 1,000 of 32 by 32; label 1 where one contour joins both discs. The 1,000
      that the file keeps for validation are not read.
    - ``digits``: 1,797 of 8 by 8 from scikit-learn, a fifth of every class for testing; needs no root.
    - ``imagenet1k``: what the folder imagenet1k of the root has, images of 224 by 224 in ``train_x.npy``,
      ``train_y.npy``, ``test_x.npy`` and ``test_y.npy``, as below.
    - a folder with ``train.npz`` and ``test.npz``, each with x (n, h, w) or (n, c, h, w) in uint8 and
      y (n,); names of `classes` may stand in the first. ``./NAME`` is always a folder. A folder may
      have ``train_x.npy`` with (n, c, h, w) in uint8, ``train_y.npy`` and both for `test` in their
      place: images are then mapped, and read when they are asked for.

    The validation part is always cut from the training part, so that `train` and `validation`
    together are the training part, and the test part depends on no option.

    Args:
        split: train, validation or test.
        root: folder of data sets; the environment variable KERNELHEAD_DATA if left out.
        validation: share of every class that is held out; 0 keeps all for training.
        seed: names the draw of the validation part.

    Raises:
        BadInput: a file is missing or is another one, or a number is out of range.
        UnknownName: no set has that name, or there is no such split.
        MissingExtra: Pillow is needed and not installed.

    Example:
        >>> digits = read_images("digits")
        >>> digits.x.shape, len(digits.classes)
        ((1295, 1, 8, 8), 10)
        >>> len(read_images("digits", split="validation")), len(read_images("digits", split="test"))
        (143, 359)
    """
    source = check_part(WHO, split)
    path = Path(name).expanduser()
    if str(name) in _READERS:
        whole = _READERS[str(name)](source, root)
    elif path.is_dir():
        whole = _read_folder(path, source)
    elif path.name == str(name):
        raise unknown(WHO, "set of images", str(name), _READERS)
    else:
        raise BadInput(f"{WHO}: {path} is not a folder with train.npz and test.npz")
    chosen = in_part(WHO, whole.y, split, validation=validation, seed=seed)
    return whole if chosen.all() else whole.take(np.flatnonzero(chosen))


def _read_mnist(source: str, root: str | Path | None) -> Images:
    arrays = _npz("mnist/mnist.npz", root)
    return Images("mnist", arrays[f"x_{source}"][:, None], arrays[f"y_{source}"], DIGITS)


def _read_pathfinder(source: str, root: str | Path | None) -> Images:
    arrays = _npz("pathfinder32/hard.npz", root)
    x, y = arrays[f"x_{source}"][:, None], arrays[f"y_{source}"]
    return Images("pathfinder32", x, y, ("apart", "joined"))


def _read_gray(source: str, root: str | Path | None) -> Images:
    labels = _npz("cifar10/labels.npz", root)
    x = _sheet(f"cifar10/gray_{source}.png", root)
    return Images("cifar10-gray", x, labels[f"y_{source}"], tuple(labels["classes"].tolist()))


def _read_colour(source: str, root: str | Path | None) -> Images:
    labels = _npz("cifar10/labels.npz", root)
    x = _sheet("cifar10/rgb_train8k.webp" if source == "train" else "cifar10/rgb_test2k.webp", root)
    y = labels[f"y_{source}"][labels[f"rgb_{source}_index"]]
    return Images("cifar10", x, y, tuple(labels["classes"].tolist()))


def _read_digits(source: str, root: str | Path | None) -> Images:
    from sklearn.datasets import load_digits

    data = load_digits()
    x = np.round(data.images * (255 / 16)).astype(np.uint8)[:, None]
    whole = Images("digits", x, data.target, DIGITS)
    # The draw of the test part is the same for every seed of the validation part.
    part = "validation" if source == "test" else "train"
    return whole.take(np.flatnonzero(in_part(WHO, whole.y, part, validation=0.2, seed=0)))


def _read_imagenet(source: str, root: str | Path | None) -> Images:
    return _read_mapped(root_of(WHO, "imagenet1k", root) / "imagenet1k", source)


_READERS: dict[str, Callable[[str, str | Path | None], Images]] = {
    "mnist": _read_mnist,
    "cifar10-gray": _read_gray,
    "cifar10": _read_colour,
    "pathfinder32": _read_pathfinder,
    "digits": _read_digits,
    "imagenet1k": _read_imagenet,
}


def _read_folder(folder: Path, source: str) -> Images:
    if (folder / "train_x.npy").is_file():
        return _read_mapped(folder, source)
    train = _arrays(folder / "train.npz")
    # Classes are those of the training part, so that both parts count alike.
    named = np.ravel(train["classes"]).tolist() if "classes" in train else None
    names = _numbered(folder / "train.npz", train["y"]) if named is None else named
    held = train if source == "train" else _arrays(folder / "test.npz")
    x = held["x"][:, None] if held["x"].ndim == 3 else held["x"]
    return Images(folder.resolve().name, x, held["y"], tuple(map(str, names)))


def _read_mapped(folder: Path, source: str) -> Images:
    train = _mapped(folder / "train_y.npy")
    x, y = (_mapped(folder / f"{source}_{name}.npy") for name in "xy")
    names = _numbered(folder / "train_y.npy", train)
    return Images(folder.resolve().name, x, np.array(y), tuple(map(str, names)))


def _numbered(path: Path, labels: NDArray[Any]) -> range:
    """Classes without names: from 0 to the largest label."""
    if labels.ndim != 1 or labels.dtype.kind not in "iu":
        raise BadInput(
            f"{WHO}: {path} has labels of {labels.dtype} {labels.shape}, expected whole numbers (n,)"
        )
    largest = int(labels.max(initial=0))
    if largest >= MOST_CLASSES:
        raise BadInput(f"{WHO}: {path} has label {largest}, expected below {MOST_CLASSES:,}")
    return range(largest + 1)


def _mapped(path: Path) -> NDArray[Any]:
    if not path.is_file():
        raise BadInput(
            f"{WHO}: {path} is not there; put train_x.npy and test_x.npy there, images (n, c, h, w) in "
            "uint8, with train_y.npy and test_y.npy, labels (n,) from 0 on"
        )
    try:
        return np.load(path, mmap_mode="r", allow_pickle=False)
    except Exception as error:  # a hostile header can fail anywhere
        raise BadInput(f"{WHO}: {path} is not a readable .npy file: {error}") from error


def _arrays(path: Path) -> dict[str, NDArray[Any]]:
    try:
        # np.load leaves a file of its own open when the archive is broken.
        with path.open("rb") as opened, np.load(opened, allow_pickle=False) as file:
            # A member that is no array comes as bytes.
            found = {key: np.asarray(file[key]) for key in ("x", "y", "classes") if key in file.files}
    except Exception as error:  # a hostile archive can fail anywhere between zip, header and data
        raise BadInput(f"{WHO}: {path} is not a readable .npz file: {error}") from error
    if not {"x", "y"} <= found.keys():
        raise BadInput(f"{WHO}: {path} holds {', '.join(found) or 'neither'}, expected x and y")
    return found


def _npz(place: str, root: str | Path | None) -> Any:
    return np.load(BytesIO(read_checked(WHO, place, DIGESTS[place], root)), allow_pickle=False)


def _sheet(place: str, root: str | Path | None) -> NDArray[np.uint8]:
    """The images of a sheet, row by row, (n, c, h, w)."""
    try:
        from PIL import Image
    except ImportError:
        raise missing_extra(WHO, "Pillow", "image") from None
    sheet = np.asarray(Image.open(BytesIO(read_checked(WHO, place, DIGESTS[place], root))))
    cut = sheet.reshape(-1, SIDE, ACROSS, SIDE, sheet[0, 0].size)  # (down, h, across, w, c)
    return cut.transpose(0, 2, 4, 1, 3).reshape(-1, sheet[0, 0].size, SIDE, SIDE)
