"""open_host and read_inputs: models by name, inputs from files, and a sentence for what is neither."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from kernelhead.errors import BadInput, CheckpointError
from kernelhead.surgery import Host, batches, is_host, open_host, read_inputs, write_host
from tests.surgery.saved import saved_bert, text

LAYER = "tests.surgery.test_hosts:encoder_layer"


def encoder_layer() -> nn.Module:
    return nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)


def test_a_saved_folder_comes_with_its_tokeniser(tmp_path: Path) -> None:
    folder = saved_bert(tmp_path / "bert")
    host = open_host(str(folder))
    assert (type(host.model).__name__, host.model.training) == ("BertModel", False)
    given = read_inputs(host, text(tmp_path / "text.txt"), cases=5, length=6)
    assert isinstance(given, dict)
    assert {name: tuple(each.shape) for name, each in given.items()} == {
        "input_ids": (5, 6),
        "attention_mask": (5, 6),
    }
    assert is_host(folder)


def test_a_function_and_its_weights(tmp_path: Path) -> None:
    first = open_host(LAYER).model
    write_host(first, tmp_path / "weights.safetensors")
    second = open_host(LAYER, weights=tmp_path / "weights.safetensors").model
    x = torch.randn(2, 3, 8)
    assert torch.equal(first(x), second(x))
    assert is_host(LAYER)


def test_arrays_by_place_and_by_name(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.zeros((4, 3, 8), np.float32))
    np.savez(tmp_path / "x.npz", src=np.zeros((4, 3, 8), np.float32), mask=np.ones(4))
    host = Host(nn.Identity())
    one, several = (read_inputs(host, tmp_path / name, cases=3) for name in ("x.npy", "x.npz"))
    assert isinstance(one, torch.Tensor)
    assert one.shape == (3, 3, 8)
    assert isinstance(several, dict)
    assert [(name, len(each)) for name, each in several.items()] == [("src", 3), ("mask", 3)]
    parts = batches(several, 2)
    assert [len(part["src"]) for part in parts if isinstance(part, dict)] == [2, 1]


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("nothing", "there is no model 'nothing', expected a folder with a config.json"),
        ("tests.surgery:nothing", "'tests.surgery:nothing' cannot be imported"),
        ("nowhere.at.all:make", "'nowhere.at.all:make' cannot be imported"),
        ("builtins:dict", "'builtins:dict' gave dict, expected a module of torch"),
    ],
)
def test_what_is_no_model_is_said(name: str, sentence: str) -> None:
    with pytest.raises(BadInput, match=sentence):
        open_host(name)


def test_folders_that_are_no_models_are_said(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"has no config\.json"):
        open_host(str(tmp_path))
    pytest.importorskip("transformers")
    (tmp_path / "config.json").write_text('{"model_type": "no such"}')
    with pytest.raises(BadInput, match="is no model that transformers can open"):
        open_host(str(tmp_path))
    with pytest.raises(BadInput, match=r"has its own weights; leave out w\.safetensors"):
        open_host(str(tmp_path), weights="w.safetensors")


@pytest.mark.parametrize("content", ["", "not json", "[]", '{"seed": 0}'])
def test_other_folders_are_no_hosts(tmp_path: Path, content: str) -> None:
    (tmp_path / "config.json").write_text(content)
    assert not is_host(tmp_path)


def test_weights_that_do_not_fit_are_said(tmp_path: Path) -> None:
    write_host(nn.Linear(2, 2), tmp_path / "linear.safetensors")
    with pytest.raises(BadInput, match=r"linear\.safetensors does not fit TransformerEncoderLayer"):
        open_host(LAYER, weights=tmp_path / "linear.safetensors")
    (tmp_path / "broken.safetensors").write_bytes(b"no")
    for name, words in (("broken", "is not a whole safetensors file"), ("absent", "does not exist")):
        with pytest.raises(CheckpointError, match=f"{name}.safetensors {words}"):
            open_host(LAYER, weights=tmp_path / f"{name}.safetensors")


def test_inputs_that_cannot_be_read_are_said(tmp_path: Path) -> None:
    bare, spoken = Host(nn.Identity()), Host(nn.Identity(), tokenizer=object())
    (tmp_path / "a.txt").write_text("one\n")
    with pytest.raises(BadInput, match=r"a\.txt is text, but the model came without a tokeniser"):
        read_inputs(bare, tmp_path / "a.txt")
    with pytest.raises(BadInput, match=r"absent\.txt cannot be read as text"):
        read_inputs(spoken, tmp_path / "absent.txt")
    (tmp_path / "empty.txt").write_text("\n\n")
    with pytest.raises(BadInput, match=r"empty\.txt has no line of text"):
        read_inputs(spoken, tmp_path / "empty.txt")
    with pytest.raises(BadInput, match="read_inputs: cases is 0, expected a whole number of at least 1"):
        read_inputs(bare, tmp_path / "x.npy", cases=0)
    (tmp_path / "x.npy").write_bytes(b"no")
    with pytest.raises(BadInput, match=r"x\.npy cannot be read"):
        read_inputs(bare, tmp_path / "x.npy")
    np.savez(tmp_path / "x.npz", a=np.zeros(2), b=np.zeros(3))
    with pytest.raises(
        BadInput, match=r"x\.npz has arrays of \[2, 3\] cases, expected the same of all, not 0"
    ):
        read_inputs(bare, tmp_path / "x.npz")


def broken() -> nn.Module:
    raise RuntimeError("no\nmodel")


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("tests.surgery.test_hosts:broken", "cannot be called: RuntimeError: no model$"),
        ("torch.nn:Linear", "cannot be called: TypeError: "),
        ("..nowhere:make", "cannot be imported: TypeError: "),
    ],
)
def test_functions_that_make_no_model_are_said(name: str, sentence: str) -> None:
    with pytest.raises(BadInput, match=sentence):
        open_host(name)


def test_a_folder_with_half_of_its_weights_is_said(tmp_path: Path) -> None:
    weights = saved_bert(tmp_path / "bert") / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:500])
    with pytest.raises(BadInput, match="is no model that transformers can open: SafetensorError"):
        open_host(str(tmp_path / "bert"))


def test_a_folder_without_a_vocabulary_has_no_tokeniser(tmp_path: Path) -> None:
    for file in saved_bert(tmp_path / "bert").iterdir():
        if file.name not in ("config.json", "model.safetensors"):
            file.unlink()
    assert open_host(str(tmp_path / "bert")).tokenizer is None


def test_weights_of_many_names_are_said_in_a_line(tmp_path: Path) -> None:
    write_host(nn.TransformerDecoder(nn.TransformerDecoderLayer(8, 2), 3), tmp_path / "w.safetensors")
    with pytest.raises(BadInput) as caught:
        open_host(LAYER, weights=tmp_path / "w.safetensors")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("ending", ["npy", "npz"])
@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 no archive"])
def test_arrays_that_are_none_are_said(content: bytes, ending: str, tmp_path: Path) -> None:
    (tmp_path / f"x.{ending}").write_bytes(content)
    with pytest.raises(BadInput, match=rf"x\.{ending} cannot be read"):
        read_inputs(Host(nn.Identity()), tmp_path / f"x.{ending}")


@pytest.mark.parametrize("array", [np.array(["a", "b"]), np.array([1, None], dtype=object)])
def test_arrays_without_numbers_are_said(array: Any, tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", a=array)
    with pytest.raises(BadInput, match=r"x\.npz cannot be read"):
        read_inputs(Host(nn.Identity()), tmp_path / "x.npz")


def test_texts_of_no_length_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="read_inputs: length is 0, expected a whole number of at least 1"):
        read_inputs(Host(nn.Identity(), tokenizer=object()), text(tmp_path / "a.txt"), length=0)
