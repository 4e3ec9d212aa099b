"""save and load: what comes back, what is refused, and that no file is ever half written."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from kernelhead.errors import BadInput, CheckpointError, MissingExtra
from kernelhead.rng import seeded
from kernelhead.surgery import graft, grafts, load, restore, save
from kernelhead.surgery.store import checksum
from tests.inputs import points
from tests.surgery.hosts import built, inputs, output

safetensors = pytest.importorskip("safetensors.torch")
FILE = "graft.safetensors"


def saved(folder: Path, *, whole: bool = False) -> Path:
    """A file with a primal graft in the last layer of an encoder."""
    model = built("torch_encoder")
    graft(model, "primal", rank=3)
    save(model, folder / FILE, whole=whole)
    return folder / FILE


def changed(path: Path, change: Callable[[dict[str, Tensor], dict[str, Any]], None]) -> Path:
    """The file with other weights or another manifest."""
    with safetensors.safe_open(path, framework="pt") as opened:
        manifest = json.loads(opened.metadata()["kernelhead.graft"])
    weights = safetensors.load_file(path)
    change(weights, manifest)
    safetensors.save_file(weights, path, metadata={"kernelhead.graft": json.dumps(manifest)})
    return path


def test_only_what_was_added_is_written(tmp_path: Path) -> None:
    path = saved(tmp_path)
    assert {name.rsplit(".", 1)[0] for name in safetensors.load_file(path)} >= {
        "layers.1.self_attn.kernelhead"
    }
    assert all(".kernelhead." in name for name in safetensors.load_file(path))
    assert [each.name for each in tmp_path.iterdir()] == [FILE]


def test_the_manifest_says_what_and_with_what(tmp_path: Path) -> None:
    seen: dict[str, Any] = {}
    changed(saved(tmp_path), lambda weights, manifest: seen.update(manifest))
    assert seen["format"] == 1
    assert {"kernelhead", "torch"} <= seen["versions"].keys()
    assert seen["host"].endswith("TransformerEncoder")
    assert [(each["path"], each["method"], each["heads"], each["head"]) for each in seen["grafts"]] == [
        ("layers.1.self_attn", "primal", 4, 8)
    ]


def test_a_trained_host_is_saved_whole(tmp_path: Path) -> None:
    model, fresh, given = built("torch_encoder"), built("torch_encoder", seed=1), inputs("torch_encoder")
    graft(model, "primal", "all", rank=3)
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(0.01)
    save(model, tmp_path / FILE)
    with pytest.raises(
        CheckpointError, match=r"whose weights differ from these; save with whole=True, or load"
    ):
        load(fresh, tmp_path / FILE)
    save(model, tmp_path / FILE, whole=True)
    load(fresh, tmp_path / FILE)
    assert torch.equal(output(fresh, given), output(model, given))


def test_tied_weights_are_saved_whole(tmp_path: Path) -> None:
    model, fresh = built("bert"), built("bert", seed=1)
    for each in (model, fresh):
        each.tied = each.embeddings.word_embeddings
    graft(model, "rpc")
    save(model, tmp_path / FILE, whole=True)
    load(fresh, tmp_path / FILE)
    assert torch.equal(output(fresh, inputs("bert")), output(model, inputs("bert")))


class Counting(nn.Module):
    """A host that keeps a number beside its weights."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.seen = built("torch_encoder"), 0

    def get_extra_state(self) -> dict[str, int]:
        return {"seen": self.seen}

    def set_extra_state(self, state: dict[str, int]) -> None:
        self.seen = state["seen"]


def test_what_a_host_keeps_beside_tensors_stays_its_own(tmp_path: Path) -> None:
    model, fresh = Counting(), Counting()
    model.seen, fresh.seen = 3, 5
    graft(model, "rpc", options={"iterations": np.int64(2), "strength": np.float32(0.5)})
    save(model, tmp_path / FILE, whole=True)
    load(fresh, tmp_path / FILE)
    assert (len(grafts(fresh)), fresh.seen) == (1, 5)
    assert fresh.encoder.layers[1].self_attn.kernelhead.options()["strength"] == 0.5


def test_other_weights_are_taken_where_that_is_wanted(tmp_path: Path) -> None:
    other = built("torch_encoder", seed=1)
    report = load(other, saved(tmp_path), strict=False)
    assert [each.path for each in report.done] == ["layers.1.self_attn"]


def test_grafts_of_different_cores_come_back(tmp_path: Path) -> None:
    model, fresh, given = built("bert"), built("bert"), inputs("bert")
    graft(model, "primal", [0], rank=3, data=given)
    graft(model, "rpc", [1])
    save(model, tmp_path / FILE)
    load(fresh, tmp_path / FILE)
    assert grafts(fresh) == grafts(model)
    assert torch.equal(output(fresh, given), output(model, given))
    restore(fresh)
    assert torch.equal(output(fresh, given), output(built("bert"), given))


def test_grafts_that_are_there_are_replaced(tmp_path: Path) -> None:
    path, host = saved(tmp_path), built("torch_encoder")
    graft(host, "rpc", "all")
    assert load(host, path).replaced == ("layers.1.self_attn",)
    assert [*grafts(host)] == ["layers.1.self_attn"]


def test_a_model_without_a_graft_is_not_saved(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="nothing is grafted in this TransformerEncoder"):
        save(built("torch_encoder"), tmp_path / FILE)
    assert not (tmp_path / FILE).exists()


def test_a_file_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    model = built("torch_encoder")
    graft(model, "softmax")
    with pytest.raises(CheckpointError, match="cannot write"):
        save(model, tmp_path / "file" / FILE)


def test_a_failed_write_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = saved(tmp_path)
    before = path.read_bytes()

    def broken(*args: Any, **kwargs: Any) -> None:
        raise safetensors_error("disk full")

    monkeypatch.setattr("safetensors.torch.save_file", broken)
    with pytest.raises(CheckpointError, match=r"cannot write .*: disk full"):
        saved(tmp_path)
    assert path.read_bytes() == before
    assert [each.name for each in tmp_path.iterdir()] == [FILE]


def safetensors_error(words: str) -> Exception:
    from safetensors import SafetensorError

    return SafetensorError(words)


def break_path(weights: dict[str, Tensor], manifest: dict[str, Any]) -> None:
    manifest["grafts"][0]["path"] = "layers.7.self_attn"


def break_heads(weights: dict[str, Tensor], manifest: dict[str, Any]) -> None:
    manifest["grafts"][0]["heads"] = 2


def break_host(weights: dict[str, Tensor], manifest: dict[str, Any]) -> None:
    manifest["host"] = "torch.nn.Transformer"


def break_method(weights: dict[str, Tensor], manifest: dict[str, Any]) -> None:
    manifest["grafts"][0]["method"] = "telepathy"


def break_options(weights: dict[str, Tensor], manifest: dict[str, Any]) -> None:
    manifest["grafts"][0]["options"]["nonsense"] = 1


def break_format(weights: dict[str, Tensor], manifest: dict[str, Any]) -> None:
    manifest["format"] = 2


def break_manifest(weights: dict[str, Tensor], manifest: dict[str, Any]) -> None:
    del manifest["grafts"]


def break_weights(weights: dict[str, Tensor], manifest: dict[str, Any]) -> None:
    next(iter(weights.values())).flatten()[0] += 1


def break_shape(weights: dict[str, Tensor], manifest: dict[str, Any]) -> None:
    name = next(iter(weights))
    weights[name] = torch.zeros(1, 1, 1)
    manifest["weights"] = checksum(weights)


def break_names(weights: dict[str, Tensor], manifest: dict[str, Any]) -> None:
    weights["layers.1.self_attn.kernelhead.more"] = torch.zeros(1)
    manifest["weights"] = checksum(weights)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (break_path, "does not fit the model: at 'layers.7.self_attn' there is no attention"),
        (break_heads, "'layers.1.self_attn' has 4 heads of 8, expected 2 of 8"),
        (break_host, "was saved from a torch.nn.Transformer, this is a torch.*TransformerEncoder"),
        (break_method, "asks for a core that this version does not build: .*telepathy"),
        (break_options, "asks for a core that this version does not build: .*nonsense"),
        (break_format, "has format 2, newer than 1: update kernelhead"),
        (break_manifest, "has a manifest that cannot be read: 'grafts' is not there or is no list"),
        (break_weights, "is damaged: its weights are not those that were saved"),
        (break_shape, r"is \(1, 1, 1\), expected"),
        (break_names, "'more' is not in the model"),
    ],
)
def test_what_does_not_fit_is_said_and_changes_nothing(change: Any, words: str, tmp_path: Path) -> None:
    path, host, given = changed(saved(tmp_path), change), built("torch_encoder"), inputs("torch_encoder")
    before = output(host, given)
    with pytest.raises(CheckpointError, match=words):
        load(host, path)
    assert grafts(host) == {}
    assert torch.equal(output(host, given), before)


def test_whole_weights_of_another_shape_are_refused(tmp_path: Path) -> None:
    path = changed(saved(tmp_path, whole=True), without_a_bias)
    with pytest.raises(CheckpointError, match=r"'layers.0.linear1.bias' is not in the file"):
        load(built("torch_encoder"), path)


def without_a_bias(weights: dict[str, Tensor], manifest: dict[str, Any]) -> None:
    del weights["layers.0.linear1.bias"]
    manifest["weights"] = checksum(weights)


def test_a_site_that_cannot_be_grafted_is_refused(tmp_path: Path) -> None:
    model = nn.ModuleList([nn.MultiheadAttention(8, 2)])
    graft(model, "softmax")
    save(model, tmp_path / FILE)
    other = nn.ModuleList([nn.MultiheadAttention(8, 2, add_zero_attn=True)])
    with pytest.raises(CheckpointError, match="at '0' is one that cannot be grafted: it adds a key of zeros"):
        load(other, tmp_path / FILE, strict=False)


def test_files_that_are_not_ours_are_named(tmp_path: Path) -> None:
    host = built("torch_encoder")
    with pytest.raises(CheckpointError, match="does not exist"):
        load(host, tmp_path / "nothing")
    (tmp_path / "text").write_text("hello")
    with pytest.raises(CheckpointError, match="is not a whole safetensors file"):
        load(host, tmp_path / "text")
    safetensors.save_file({"a": torch.zeros(1)}, tmp_path / "foreign")
    with pytest.raises(CheckpointError, match="holds no graft: it has no manifest of kernelhead"):
        load(host, tmp_path / "foreign")
    safetensors.save_file({"a": torch.zeros(1)}, tmp_path / "odd", metadata={"kernelhead.graft": "{"})
    with pytest.raises(CheckpointError, match="has a manifest that cannot be read"):
        load(host, tmp_path / "odd")


@pytest.mark.parametrize("share", [0, 4, 0.3, 0.99], ids=str)
def test_a_file_cut_short_is_named(share: float, tmp_path: Path) -> None:
    path = saved(tmp_path)
    written = path.read_bytes()
    path.write_bytes(written[: share if isinstance(share, int) else int(share * len(written))])
    with pytest.raises(CheckpointError, match="is not a whole safetensors file"):
        load(built("torch_encoder"), path)


def test_without_safetensors_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, model = saved(tmp_path), built("torch_encoder")
    graft(model, "softmax")
    monkeypatch.setitem(sys.modules, "safetensors", None)
    with pytest.raises(MissingExtra, match="write_tensors: needs safetensors"):
        save(model, path)
    with pytest.raises(MissingExtra, match="read_tensors: needs safetensors"):
        load(model, path)


class Shared(nn.Module):
    """One layer in two places."""

    def __init__(self) -> None:
        super().__init__()
        with seeded(0):
            self.first = self.second = nn.TransformerEncoderLayer(16, 4, 32, batch_first=True).eval()

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.second(self.first(x))
        return output


@pytest.mark.parametrize("whole", [False, True])
def test_a_module_in_two_places_is_saved_once(whole: bool, tmp_path: Path) -> None:
    host, other, x = Shared(), Shared(), points(2, 5, 16, dtype=torch.float32)
    graft(host, "primal", "all", rank=3)
    save(host, tmp_path / FILE, whole=whole)
    load(other, tmp_path / FILE)
    assert torch.equal(host(x), other(x))
    assert sum("second.self_attn.kernelhead" in name for name in safetensors.load_file(tmp_path / FILE)) == 0
