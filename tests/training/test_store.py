"""The store: whole files or none, and a sentence for every file that is not ours."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import nn

from kernelhead.errors import CheckpointError, MissingExtra
from kernelhead.nn.store import write_tensors
from kernelhead.training.store import (
    SUM,
    load_into,
    load_model,
    load_tensors,
    optimiser_tensors,
    prepare_folder,
    restore_optimiser,
    save_tensors,
)
from tests.disks import no_file_above
from tests.inputs import points

TENSORS = {"a": points(3, 2), "b.c": torch.arange(4), "d": torch.tensor(1.5, dtype=torch.bfloat16)}
FACTS = {"name": "größe", "rows": [1, 2.5, None]}


def test_a_round_trip_keeps_every_bit(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "er" / "w.safetensors"
    save_tensors(path, TENSORS, FACTS)
    tensors, facts = load_tensors(path)
    assert facts == FACTS
    assert tensors.keys() == TENSORS.keys()
    for name, tensor in TENSORS.items():
        assert torch.equal(tensors[name], tensor)
        assert tensors[name].dtype == tensor.dtype
    assert [each.name for each in path.parent.iterdir()] == ["w.safetensors"]


def test_views_shared_weights_and_gradients_are_saved(tmp_path: Path) -> None:
    whole = points(4, 4).requires_grad_()
    save_tensors(tmp_path / "w", {"turned": whole.T, "row": whole[1], "again": whole}, {})
    tensors, _ = load_tensors(tmp_path / "w")
    assert torch.equal(tensors["turned"], whole.T)
    assert torch.equal(tensors["row"], whole[1])


def test_the_same_content_is_the_same_file(tmp_path: Path) -> None:
    for name in ("one", "two"):
        save_tensors(tmp_path / name, TENSORS, FACTS)
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()


def test_a_failed_write_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "w"
    save_tensors(path, TENSORS, FACTS)

    def half(tensors: Any, temporary: Path, metadata: Any) -> None:
        Path(temporary).write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("safetensors.torch.save_file", half)
    with pytest.raises(CheckpointError, match=r"cannot write .*w: No space left on device"):
        save_tensors(path, {}, {})
    monkeypatch.undo()
    assert load_tensors(path)[1] == FACTS
    assert [each.name for each in tmp_path.iterdir()] == ["w"]


def test_what_the_library_writes_first_says_whose_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []

    def looked(tensors: object, to: Path, **words: object) -> None:
        # Version 0.8 writes to a name of its own beside, and one that is killed leaves it.
        seen.append(Path(to).parent)
        save_file(tensors, to, **words)

    monkeypatch.setattr("safetensors.torch.save_file", looked)
    save_tensors(tmp_path / "w", TENSORS, FACTS)
    assert seen[0].parent == tmp_path
    assert seen[0].name.startswith(".w.")
    assert [each.name for each in tmp_path.iterdir()] == ["w"]


def test_a_disk_that_is_full_is_a_sentence(tmp_path: Path) -> None:
    path = tmp_path / "w"
    save_tensors(path, TENSORS, FACTS)
    with no_file_above(4096), pytest.raises(CheckpointError, match=r"cannot write .*w: "):
        save_tensors(path, {"big": points(100, 100)}, {})
    assert load_tensors(path)[1] == FACTS
    assert [each.name for each in tmp_path.iterdir()] == ["w"]


def test_a_place_below_a_file_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(CheckpointError, match=r"cannot write .*file/run/w: "):
        save_tensors(tmp_path / "file" / "run" / "w", TENSORS, FACTS)
    with pytest.raises(CheckpointError, match=r"cannot write .*file/run"):
        prepare_folder(tmp_path / "file" / "run")


def test_a_forbidden_place_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("kernelhead.records.NamedTemporaryFile", refuse)
    with pytest.raises(CheckpointError, match=r"cannot write .*w: Permission denied"):
        save_tensors(tmp_path / "w", TENSORS, FACTS)
    monkeypatch.setattr("kernelhead.training.store.TemporaryFile", refuse)
    with pytest.raises(CheckpointError, match=r"cannot write .*run.*: Permission denied"):
        prepare_folder(tmp_path / "run")


def test_a_prepared_folder_is_empty(tmp_path: Path) -> None:
    prepare_folder(tmp_path / "a" / "run")
    prepare_folder(tmp_path / "a" / "run")
    assert not list((tmp_path / "a" / "run").iterdir())


@pytest.mark.parametrize("kept", [0, 4, 60, 0.5, -1], ids=str)
def test_a_file_cut_short_is_a_sentence(tmp_path: Path, kept: float) -> None:
    path = tmp_path / "w"
    save_tensors(path, TENSORS, FACTS)
    whole = path.read_bytes()
    path.write_bytes(whole[: int(kept * len(whole)) if 0 < kept < 1 else int(kept)])
    with pytest.raises(CheckpointError, match=r"w is not a whole safetensors file: "):
        load_tensors(path)


def test_other_bytes_are_a_sentence(tmp_path: Path) -> None:
    for content in (b"PK\x03\x04" * 50, b"\xff" * 400, b"{}" * 40):
        (tmp_path / "w").write_bytes(content)
        with pytest.raises(CheckpointError, match=r"w is not a whole safetensors file: "):
            load_tensors(tmp_path / "w")


def test_a_file_of_another_program_is_a_sentence(tmp_path: Path) -> None:
    for metadata in (None, {"format": "pt"}):
        save_file({"a": points(2)}, tmp_path / "w", metadata=metadata)
        with pytest.raises(CheckpointError, match=r"w was not written by kernelhead: it holds no facts"):
            load_tensors(tmp_path / "w")
    save_file({"a": points(2)}, tmp_path / "w", metadata={"facts": "{half"})
    with pytest.raises(CheckpointError, match=r"w is not a whole safetensors file: "):
        load_tensors(tmp_path / "w")


def test_a_missing_file_is_a_sentence(tmp_path: Path) -> None:
    for path, words in ((tmp_path / "none", "does not exist"), (tmp_path, "is a folder")):
        with pytest.raises(CheckpointError, match=f"{path.name} {words}"):
            load_tensors(path)


def test_weights_go_into_a_module() -> None:
    source, target = nn.Linear(3, 2), nn.Linear(3, 2)
    load_into(Path("w"), target, source.state_dict())
    assert torch.equal(source.weight, target.weight)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"weight": None}, "w does not fit the model: 'weight' is not in the file"),
        ({"extra": torch.zeros(1)}, "w does not fit the model: 'extra' is not in the model"),
        ({"weight": torch.zeros(2, 4)}, r"w does not fit the model: 'weight' is \(2, 4\), expected \(2, 3\)"),
    ],
    ids=["missing", "left over", "shape"],
)
def test_weights_that_do_not_fit_are_named(change: dict[str, Any], sentence: str) -> None:
    module = nn.Linear(3, 2)
    before = module.weight.clone()
    given = {name: tensor for name, tensor in {**module.state_dict(), **change}.items() if tensor is not None}
    with pytest.raises(CheckpointError, match=sentence):
        load_into(Path("w"), module, given)
    assert torch.equal(module.weight, before)


@pytest.mark.parametrize("kind", [torch.optim.AdamW, torch.optim.RAdam])
def test_an_optimiser_goes_on_where_it_was(kind: type[torch.optim.Optimizer], tmp_path: Path) -> None:
    def steps(weight: nn.Parameter, optimiser: torch.optim.Optimizer, count: int) -> None:
        for _ in range(count):
            optimiser.zero_grad()
            weight.square().sum().backward()
            optimiser.step()

    straight, halved = nn.Parameter(points(3)), nn.Parameter(points(3))
    steps(straight, kind([straight], lr=0.1), 6)
    first = kind([halved], lr=0.1)
    steps(halved, first, 3)
    save_tensors(tmp_path / "w", optimiser_tensors(first), {})
    second = kind([halved], lr=0.1)
    restore_optimiser(second, load_tensors(tmp_path / "w")[0])
    steps(halved, second, 3)
    assert torch.equal(straight, halved)


def test_a_fresh_optimiser_has_nothing_to_keep() -> None:
    optimiser = torch.optim.AdamW([nn.Parameter(points(3))])
    assert optimiser_tensors(optimiser) == {}
    restore_optimiser(optimiser, {})


def test_facts_are_json_beside_the_tensors(tmp_path: Path) -> None:
    save_tensors(tmp_path / "w", TENSORS, FACTS)
    with safe_open(tmp_path / "w", framework="pt") as opened:
        assert {**json.loads(opened.metadata()["facts"]), SUM: 0} == {**FACTS, SUM: 0}


def test_a_missing_package_names_its_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "safetensors", None)
    monkeypatch.setitem(sys.modules, "safetensors.torch", None)
    with pytest.raises(MissingExtra, match=r"write_tensors: needs safetensors.*kernelhead\[cli\]"):
        save_tensors(tmp_path / "w", TENSORS, FACTS)
    with pytest.raises(MissingExtra, match=r"read_tensors: needs safetensors.*kernelhead\[cli\]"):
        load_tensors(tmp_path / "w")


def test_a_bit_that_changed_is_seen(tmp_path: Path) -> None:
    path = tmp_path / "w"
    save_tensors(path, {"a": torch.ones(64)}, FACTS)
    held = bytearray(path.read_bytes())
    held[-1] ^= 1
    path.write_bytes(bytes(held))
    with pytest.raises(CheckpointError, match="w is damaged: it holds other bits than were saved"):
        load_tensors(path)


def test_files_without_a_sum_and_with_strange_facts(tmp_path: Path) -> None:
    path = tmp_path / "w"
    write_tensors(path, TENSORS, {"facts": json.dumps(FACTS)})
    assert load_tensors(path)[1] == FACTS
    for facts, sentence in (("[1]", "its facts are no JSON object"), ("[" * 100_000, "is not a whole")):
        write_tensors(path, TENSORS, {"facts": facts})
        with pytest.raises(CheckpointError, match=sentence):
            load_tensors(path)


def test_a_model_comes_back_with_its_weights_and_precision(tmp_path: Path) -> None:
    held = nn.Linear(2, 3).double().state_dict()
    model = load_model(tmp_path, lambda: nn.Linear(2, 3), held, layers=1)
    assert model.weight.dtype == torch.float64
    assert not model.training
    assert torch.equal(model.weight, held["weight"])


def test_a_model_that_cannot_be_or_does_not_fit_is_a_sentence(tmp_path: Path) -> None:
    held = nn.Linear(2, 3).state_dict()
    with pytest.raises(CheckpointError, match="does not fit the model: 2 weights for 3 layers"):
        load_model(tmp_path, lambda: nn.Linear(2, 3), held, layers=3)
    with pytest.raises(CheckpointError, match=r"'weight' is \(3, 2\), expected \(3, 1000000000000\)"):
        load_model(tmp_path, lambda: nn.Linear(10**12, 3), held, layers=1)
    with pytest.raises(CheckpointError, match="describes a model that cannot be made: "):
        load_model(tmp_path, lambda: nn.Linear(2**80, 3), held, layers=1)


def test_the_state_of_another_optimiser_is_a_sentence() -> None:
    optimiser = torch.optim.AdamW([nn.Parameter(torch.zeros(2))])
    for name, tensor in (
        ("1.exp_avg", torch.zeros(2)),
        ("x.a", torch.zeros(2)),
        ("0.exp_avg", torch.zeros(3)),
    ):
        with pytest.raises(CheckpointError, match=rf"the optimiser has no '{name}' of shape"):
            restore_optimiser(optimiser, {name: tensor})


def test_a_flipped_bit_is_seen_wherever_it_matters(tmp_path: Path) -> None:
    path = tmp_path / "w"
    save_tensors(path, TENSORS, FACTS)
    whole = path.read_bytes()
    for place in range(len(whole)):
        for bit in range(8):
            bent = bytearray(whole)
            bent[place] ^= 1 << bit
            path.write_bytes(bytes(bent))
            try:
                tensors, facts = load_tensors(path)
            except CheckpointError:
                continue
            # Such as a bit of the name under which the sum stands: what is read is what was saved.
            assert all(torch.equal(tensors[key], TENSORS[key]) for key in TENSORS)
            assert {key: facts[key] for key in FACTS} == FACTS
