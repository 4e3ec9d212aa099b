"""Checkpoints that are cut, bent, swapped or made to harm: one sentence, nothing run, nothing allocated."""

import io
import json
import os
import pickle
import random
import resource
import shutil
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from kernelhead.cli.__main__ import main
from kernelhead.data import read_features, read_series, read_table
from kernelhead.errors import BadInput, CheckpointError, KernelheadError
from kernelhead.estimators import Reranker
from kernelhead.nn.store import read_tensors
from kernelhead.records import CHECKPOINT, CONFIG, RESULT, WEIGHTS, read_json, write_json
from kernelhead.surgery import Host, load, open_host, read_inputs
from kernelhead.training import load_event_run, load_run, train_run
from kernelhead.training.store import SUM, load_tensors, save_tensors
from tests.drills.targets import TARGETS, grafted, host, reranker, trained
from tests.surgery.saved import saved_bert
from tests.training.tiny import recipe, series, write_csv

Tell = Callable[[str, object], None]
SEED = 9


class Bomb:
    """What touches a file when it is unpickled."""

    def __init__(self, canary: Path) -> None:
        self.canary = canary

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.canary),)


@pytest.fixture
def canary(tmp_path: Path) -> Path:
    return tmp_path / "canary"


def test_the_canary_dies_where_a_pickle_is_read(canary: Path) -> None:
    pickle.loads(pickle.dumps(Bomb(canary)))
    assert canary.exists()


def object_array(canary: Path) -> bytes:
    held = io.BytesIO()
    np.save(held, np.array([Bomb(canary)], dtype=object), allow_pickle=True)
    return held.getvalue()


def object_archive(canary: Path, *names: str) -> bytes:
    held = io.BytesIO()
    with zipfile.ZipFile(held, "w") as file:
        for name in names:
            file.writestr(f"{name}.npy", object_array(canary))
    return held.getvalue()


def raw_archive(*names: str) -> bytes:
    """Members that are no arrays, which numpy gives as bytes."""
    held = io.BytesIO()
    with zipfile.ZipFile(held, "w") as file:
        for name in names:
            file.writestr(name, b"no array")
    return held.getvalue()


def saved_pickle(canary: Path) -> bytes:
    held = io.BytesIO()
    torch.save({"a": Bomb(canary)}, held)
    return held.getvalue()


@pytest.mark.parametrize("name", TARGETS)
def test_no_reader_unpickles(name: str, tmp_path: Path, canary: Path) -> None:
    every = ("x", "y", "ids", "labels", "classes", "length", "x_train", "y_train", "test_mask", "columns")
    contents = [
        pickle.dumps(Bomb(canary)),
        object_array(canary),
        saved_pickle(canary),
        *(object_archive(canary, each) for each in every),
        object_archive(canary, *every),
        *(raw_archive(each) for each in every),
        raw_archive(*every),
    ]
    if name == "options .yaml":
        contents = [b"!!python/object/apply:os.mkdir [%s]" % str(canary).encode(), contents[0]]
    for content in contents:
        assert TARGETS[name].outcome(content, tmp_path / "read") == "refused" or name.startswith("sentences")
    assert not canary.exists()


def test_no_host_unpickles_nor_runs_the_code_beside_it(tmp_path: Path, canary: Path) -> None:
    pytest.importorskip("transformers")
    folder = saved_bert(tmp_path / "bert")
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(saved_pickle(canary))
    with pytest.raises(BadInput, match="is no model that transformers can open"):
        open_host(str(folder))
    told = json.loads((folder / "config.json").read_text())
    code = f"import os\nos.mkdir({str(canary)!r})\nfrom transformers import BertConfig as Mine, BertModel\n"
    (folder / "mine.py").write_text(code)
    told |= {"model_type": "mine", "architectures": ["Mine"]}
    told["auto_map"] = dict.fromkeys(("AutoConfig", "AutoModel", "AutoTokenizer"), "mine.Mine")
    (folder / "config.json").write_text(json.dumps(told))
    with pytest.raises(BadInput, match="is no model that transformers can open"):
        open_host(str(folder))
    assert not canary.exists()


def test_names_in_an_archive_lead_nowhere(tmp_path: Path) -> None:
    inside = tmp_path / "a" / "b" / "c"
    inside.mkdir(parents=True)
    held = io.BytesIO()
    np.save(held, np.eye(3))
    with zipfile.ZipFile(inside / "a.npz", "w") as file:
        for name in ("x", "../../escaped", "/tmp/kernelhead-escaped", "..\\escaped", "y"):
            file.writestr(f"{name}.npy", held.getvalue())
    before = {*tmp_path.rglob("*")}
    read_features(inside / "a.npz")
    for read in (read_series, read_table, lambda path: read_inputs(Host(torch.nn.Identity()), path)):
        try:
            read(inside / "a.npz")
        except KernelheadError:
            continue
    assert {*tmp_path.rglob("*")} == before
    assert not Path("/tmp/kernelhead-escaped.npy").exists()


def with_header(header: bytes, *, length: int | None = None, rest: bytes = b"") -> bytes:
    return struct.pack("<Q", len(header) if length is None else length) + header + rest


ABSURD = {
    "empty": b"",
    "no header": struct.pack("<Q", 0),
    "a header of 2^63 bytes": with_header(b"{}", length=2**63),
    "a header of 2^40 bytes": with_header(b"{}", length=2**40),
    "a header of -1 bytes": b"\xff" * 8 + b"{}",
    "a header that is no JSON": with_header(b"\x80\x04pickle"),
    "a list": with_header(b"[1]"),
    "deep nesting": with_header(b'{"a":' * 50_000),
    "a shape of 2^62 by 2^62": with_header(
        b'{"a":{"dtype":"F32","shape":[4611686018427387904,4611686018427387904],"data_offsets":[0,4]}}',
        rest=b"\0" * 4,
    ),
    "a negative shape": with_header(
        b'{"a":{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}}', rest=b"\0" * 4
    ),
    "offsets beyond the end": with_header(b'{"a":{"dtype":"F32","shape":[9],"data_offsets":[0,36]}}'),
    "offsets that go back": with_header(
        b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[4,0]}}', rest=b"\0" * 4
    ),
    "offsets that overlap": with_header(
        b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},'
        b'"b":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}',
        rest=b"\0" * 4,
    ),
    "an unknown type": with_header(
        b'{"a":{"dtype":"OBJECT","shape":[1],"data_offsets":[0,4]}}', rest=b"\0" * 4
    ),
    "a terabyte that is not there": with_header(
        b'{"a":{"dtype":"F32","shape":[274877906944],"data_offsets":[0,1099511627776]}}', rest=b"\0" * 64
    ),
}


@pytest.mark.parametrize("content", ABSURD.values(), ids=ABSURD)
def test_absurd_headers_are_sentences(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / WEIGHTS
    path.write_bytes(content)
    for read in (read_tensors, load_tensors, Reranker.load, lambda each: load(host(), each)):
        with pytest.raises(CheckpointError, match=r"is not a whole safetensors|holds no|was not written"):
            read(path)
    with pytest.raises(CheckpointError):
        load_run(tmp_path)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two finished runs of different seeds, and one that stands after its first epoch."""
    folder = tmp_path_factory.mktemp("runs")
    write_csv(folder / "train.csv", series())
    for seed in (0, 1):
        train_run(made(folder, seed=seed), folder / str(seed))
    return folder


def made(folder: Path, **changes: Any) -> Any:
    return recipe(folder / "train.csv", epochs=2, **changes)


def test_weights_of_another_run_are_refused(runs: Path, tmp_path: Path) -> None:
    shutil.copytree(runs / "0", tmp_path / "run")
    shutil.copy(runs / "1" / WEIGHTS, tmp_path / "run" / WEIGHTS)
    with pytest.raises(
        CheckpointError,
        match=r"weights\.safetensors is not of the run that config\.json beside it says \(seed 0 there, 1",
    ):
        load_run(tmp_path / "run")


def test_weights_of_another_kind_of_run_are_refused(runs: Path, tmp_path: Path) -> None:
    for own, other, read in (
        (runs / "0", trained("events"), load_run),
        (trained("events"), runs / "0", load_event_run),
    ):
        shutil.rmtree(tmp_path / "run", ignore_errors=True)
        shutil.copytree(own, tmp_path / "run")
        shutil.copy(other / WEIGHTS, tmp_path / "run" / WEIGHTS)
        with pytest.raises(KernelheadError, match=r"holds a run on events|lacks what a run stores"):
            read(tmp_path / "run")


def test_weights_of_events_of_another_run_are_refused(tmp_path: Path) -> None:
    shutil.copytree(trained("events"), tmp_path / "run")
    said = read_json(tmp_path / "run" / CONFIG)
    write_json(tmp_path / "run" / CONFIG, {**said, "seed": 5, "data": "moved.csv", "name": "renamed"})
    with pytest.raises(CheckpointError, match=r"\(seed 5 there, 0 here\)"):
        load_event_run(tmp_path / "run")
    write_json(tmp_path / "run" / CONFIG, {**said, "data": "moved.csv", "name": "renamed"})
    assert load_event_run(tmp_path / "run").kinds == ("0", "1", "2")


def test_a_checkpoint_of_another_run_is_refused(runs: Path, tmp_path: Path) -> None:
    shutil.copytree(runs / "0", tmp_path / "run")
    (tmp_path / "run" / RESULT).unlink()
    shutil.copy(runs / "1" / CHECKPOINT, tmp_path / "run" / CHECKPOINT)
    with pytest.raises(CheckpointError, match="belongs to another run than this one"):
        train_run(made(runs), tmp_path / "run")


def changed(progress: dict[str, Any], **entries: Any) -> dict[str, Any]:
    return {"progress": {**progress, **entries}}


BENT: dict[str, Callable[[dict[str, Any], dict[str, Any]], None]] = {
    "no progress": lambda tensors, facts: facts.pop("progress"),
    "a progress of words": lambda tensors, facts: facts.update(progress="done"),
    "an unknown entry": lambda tensors, facts: facts["progress"].update(more=1),
    "an epoch that is a word": lambda tensors, facts: facts["progress"].update(epoch="one"),
    "an epoch beyond the last": lambda tensors, facts: facts["progress"].update(epoch=9),
    "a step beyond the last": lambda tensors, facts: facts["progress"].update(step=10**9),
    "a step before the first": lambda tensors, facts: facts["progress"].update(step=-1),
    "a row too few": lambda tensors, facts: facts["progress"]["rows"].pop(),
    "a row without figures": lambda tensors, facts: facts["progress"]["rows"][0].pop("valid_accuracy"),
    "a row of words": lambda tensors, facts: facts["progress"]["rows"][0].update(valid_loss="low"),
    "a tensor without a part": lambda tensors, facts: tensors.update(stray=torch.zeros(1)),
    "a tensor of no part": lambda tensors, facts: tensors.update({"other.a": torch.zeros(1)}),
    "an optimiser of words": lambda tensors, facts: tensors.update({"optimiser.x.step": torch.zeros(1)}),
    "an optimiser of more": lambda tensors, facts: tensors.update({"optimiser.999.step": torch.zeros(1)}),
    "an optimiser of other sizes": lambda tensors, facts: tensors.update(
        {"optimiser.0.exp_avg": torch.zeros(7, 7)}
    ),
    "no best weights": lambda tensors, facts: [
        tensors.pop(name) for name in [*tensors] if name.startswith("best.")
    ],
    "best weights of other sizes": lambda tensors, facts: tensors.update(
        {"best.embedding.weight": torch.zeros(1, 2, 3)}
    ),
    "no weights": lambda tensors, facts: [
        tensors.pop(name) for name in [*tensors] if name.startswith("model.")
    ],
}


@pytest.mark.parametrize("bend", BENT.values(), ids=BENT)
def test_a_bent_checkpoint_is_a_sentence_and_stays(
    bend: Callable[..., object], runs: Path, tmp_path: Path
) -> None:
    shutil.copytree(runs / "0", tmp_path / "run")
    (tmp_path / "run" / RESULT).unlink()
    path = tmp_path / "run" / CHECKPOINT
    tensors, facts = load_tensors(path)
    bend(tensors, facts)
    save_tensors(path, tensors, facts)
    before = path.read_bytes()
    with pytest.raises(CheckpointError, match=r"is no checkpoint of a run|does not fit the model"):
        train_run(made(runs), tmp_path / "run")
    assert path.read_bytes() == before


SIZES = ("width", "depth", "heads", "rank", "landmarks", "inner")


@pytest.mark.parametrize("size", [10**6, 10**12, 2**63, 2**80], ids="{:.0e}".format)
def test_sizes_that_a_file_says_and_does_not_have_cost_nothing(size: int, runs: Path, tmp_path: Path) -> None:
    shutil.copytree(runs / "0", tmp_path / "run")
    (tmp_path / "run" / CONFIG).unlink()
    path = tmp_path / "run" / WEIGHTS
    tensors, facts = load_tensors(path)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for name in (*SIZES, "longest", "channels"):
        inside = facts if name in facts else facts["recipe"]
        bent = {**inside, name: size}
        save_tensors(path, tensors, bent if inside is facts else {**facts, "recipe": bent})
        try:
            load_run(tmp_path / "run")
        except CheckpointError:
            continue
        # Only what does not shape a weight may be of any size: of sinusoidal positions there is no table.
        assert name == "longest"
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss < before + 200 * 1024


def test_sizes_of_a_graft_and_of_a_reranker_cost_nothing(tmp_path: Path) -> None:
    for content, key, read in (
        (reranker(), "facts", Reranker.load),
        (grafted(), "kernelhead.graft", lambda path: load(host(), path)),
    ):
        path = tmp_path / "a.safetensors"
        path.write_bytes(content)
        (size,) = struct.unpack("<Q", content[:8])
        header = json.loads(content[8 : 8 + size])
        facts = json.loads(header["__metadata__"][key])
        options = facts["reranker"] if key == "facts" else facts["grafts"][0]["options"]
        # Layers of softmax have weights of neither rank nor landmarks.
        names = ("width", "depth", "anchors") if key == "facts" else ("rank",)
        for name in names:
            facts.pop(SUM, None)
            before, options[name] = options[name], 10**12
            header["__metadata__"][key] = json.dumps(facts)
            path.write_bytes(with_header(json.dumps(header).encode(), rest=content[8 + size :]))
            with pytest.raises(CheckpointError, match=r"does not fit|cannot be made|does not build"):
                read(path)
            options[name] = before


def check_cuts_and_flips(runs: Path, folder: Path, count: int) -> dict[str, int]:
    """Cut files short and flip bits of them: the verbs read what was saved or say one sentence."""
    draws, seen = random.Random(SEED), {"cut": 0, "flipped, refused": 0, "flipped, read": 0}
    shutil.copytree(runs / "0", folder)
    (folder / RESULT).unlink()
    for name in (WEIGHTS, CHECKPOINT):
        whole, (tensors, facts) = (runs / "0" / name).read_bytes(), load_tensors(runs / "0" / name)
        for _ in range(count):
            cut = draws.randrange(len(whole))
            (folder / name).write_bytes(whole[:cut])
            with pytest.raises(CheckpointError):
                load_tensors(folder / name)
            seen["cut"] += 1
            bent = bytearray(whole)
            place = draws.randrange(min(len(bent), 4000))  # mostly of the header, which decides
            bent[place] ^= 1 << draws.randrange(8)
            (folder / name).write_bytes(bytes(bent))
            try:
                found, told = load_tensors(folder / name)
                load_run(folder) if name == WEIGHTS else train_run(made(runs), folder)
            except KernelheadError:
                seen["flipped, refused"] += 1
            else:
                # A bit of the name under which the sum stands: all the rest is what was saved.
                seen["flipped, read"] += 1
                assert found.keys() == tensors.keys()
                assert all(torch.equal(found[key], tensors[key]) for key in tensors)
                assert {key: told.get(key) for key in facts} == facts
                (folder / RESULT).unlink(missing_ok=True)
        (folder / name).write_bytes(whole)
    return seen


def test_some_cuts_and_flips_are_read_or_refused(runs: Path, tmp_path: Path) -> None:
    assert check_cuts_and_flips(runs, tmp_path / "run", 12)["flipped, refused"]


@pytest.mark.drill
def test_cuts_and_flips_are_read_or_refused(runs: Path, tmp_path: Path, record_property: Tell) -> None:
    for name, count in check_cuts_and_flips(runs, tmp_path / "run", 300).items():
        record_property(name, count)


@pytest.mark.parametrize("verb", ["evaluate", "inspect", "train"])
def test_the_command_line_says_one_sentence(
    verb: str, runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(runs / "0", tmp_path / "run")
    (tmp_path / "run" / RESULT).unlink()
    for name in (WEIGHTS, CHECKPOINT):
        (tmp_path / "run" / name).write_bytes(pickle.dumps({"a": 1}))
    words = [verb, *(["spectrum"] if verb == "inspect" else []), str(tmp_path / "run")]
    if verb == "train":
        words = [verb, "--config", str(tmp_path / "run" / CONFIG), "--out", str(tmp_path / "run")]
    assert main(words) == 2
    said = capsys.readouterr().err.strip().splitlines()
    assert len(said) == 1
    assert "is not a whole safetensors file" in said[0]
