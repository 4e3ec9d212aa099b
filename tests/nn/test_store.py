"""Tensors on disk: what is written is read, and what is not there is said."""

from pathlib import Path

import pytest
import torch

from kernelhead.errors import CheckpointError
from kernelhead.nn.store import read_tensors, write_tensors
from tests.inputs import points


def test_what_is_written_is_read(tmp_path: Path) -> None:
    held = points(3, 4)
    write_tensors(tmp_path / "a", {"one": held, "same": held, "turned": held.mT}, {"word": "said"})
    tensors, facts = read_tensors(tmp_path / "a")
    assert facts == {"word": "said"}
    assert torch.equal(tensors["turned"], held.mT)
    assert torch.equal(tensors["one"], tensors["same"])


def test_what_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="absent does not exist"):
        read_tensors(tmp_path / "absent")
    with pytest.raises(CheckpointError, match="is a folder"):
        read_tensors(tmp_path)
    with pytest.raises(CheckpointError, match="cannot write"):
        write_tensors(tmp_path, {"one": points(1)})
