"""Everything that reads a file of a stranger, by name: how to call it, and files to start from."""

import io
import json
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save

from kernelhead.cli.__main__ import main
from kernelhead.data import read_events, read_features, read_images, read_sentences, read_series, read_table
from kernelhead.errors import BadInput, KernelheadError
from kernelhead.estimators import CooccurrenceEmbedding, Reranker
from kernelhead.records import CONFIG, METRICS, RESULT, WEIGHTS, read_json, read_lines
from kernelhead.report import summary
from kernelhead.surgery import Host, graft, load, read_inputs
from kernelhead.training import Ledger, event_recipe_from, jobs_of, load_event_run, load_run, read_recipes
from kernelhead.training.store import load_tensors
from tests.training import tiny, tiny_events

SERIES = b"case,time,label,a,b\nx,0,up,1,2.5\nx,1,up,-1,1e3\ny,0,down,0,0\n"
EVENTS = b"sequence,time,type,label\nann,0,in,1\nann,2.5,out,1\nbob,1,in,0\n"
FEATURES = b"id,label,a,b\nfirst,cat,1,0\nsecond,dog,0,1e-3\n"
TABLE = b'size,colour,price\n1,red,3.5\n?,"blue, dark",7\n2e3,,1\n'
TS = b"""# note
@problemName Tiny
@timeStamps false
@missing false
@univariate false
@dimensions 2
@equalLength true
@seriesLength 3
@classLabel true up down
@data
1,2,3:4,5,6:up
0.5,-1e3,2:1,1,1:down
"""
RECIPE = b"""data = "JapaneseVowels"
lr = 1e-3
[primal]
attention = "primal"
rank = 4
[softmax]
attention = "softmax"
seed = 3
"""
GRID = b"""epochs = 2
lr = 1e-3
[JapaneseVowels]
softmax.paper = { penalty = 0.0 }
softmax.ours = {}
primal.paper = { rank = 30, penalty = 0.1 }
primal.ours = { lr = 1e-2 }
"primal+".paper = { rank = 40, penalty = 0.2 }
"primal+".ours = {}
"""
GRID_OF_TEXTS = b"""steps = 2
lr = 1e-3
[WikiText-2]
width = 16
[WikiText-2.primal]
rank = 4
[WikiText-2.softmax]
"""
LEDGER = json.dumps(
    {"field": "a", "rows": [dict.fromkeys(("data", "variant", "protocol", "recipe_hash"), "a") | {"seed": 0}]}
).encode()
VECTORS = b"2 3\ncat 1.0 -2 3e-1\ndog 0 0 1\n"
YAML = b"time: mercer\nharmonics: 3\nlength: 10\nunit: days\n"
METRIC = b'{"epoch": 1, "train_loss": 0.5, "train_accuracy": 0.5, "valid_loss": 0.4, "valid_accuracy": 1.0}\n'


@dataclass(frozen=True)
class Target:
    """A reader: the name its file must have, the reader, and files that it reads."""

    file: str
    read: Callable[[Path], Any]
    seeds: Callable[[], list[bytes]]

    def outcome(self, content: bytes, folder: Path) -> str:
        """ "read" or "refused"; any other end is raised."""
        path = folder / self.file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        try:
            self.read(path)
        except KernelheadError as error:
            if not str(error) or "Traceback" in str(error):
                raise AssertionError(f"no sentence: {error!r}") from error
            return "refused"
        return "read"


def arrays(**named: Any) -> bytes:
    """An .npz archive."""
    held = io.BytesIO()
    np.savez(held, **named)
    return held.getvalue()


def array(one: Any) -> bytes:
    """An .npy file."""
    held = io.BytesIO()
    np.save(held, one)
    return held.getvalue()


@cache
def trained(kind: str) -> Path:
    """The folder of a small trained run."""
    from tempfile import mkdtemp

    from kernelhead.training import train_event_run, train_run

    folder = Path(mkdtemp(prefix="kernelhead-drill-"))
    if kind == "events":
        tiny_events.write(folder / "events.csv", tiny_events.drawn())
        table = {"data": str(folder / "events.csv"), "epochs": 1, "width": 8, "heads": 2}
        train_event_run(event_recipe_from({**table, "accelerator": "cpu"}, "drill"), folder / "run")
    else:
        tiny.write_csv(folder / "train.csv", tiny.series())
        train_run(tiny.recipe(folder / "train.csv", epochs=1), folder / "run")
    return folder / "run"


def host() -> torch.nn.Module:
    """A layer of torch, the same each time."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)


@cache
def grafted() -> bytes:
    from tempfile import TemporaryDirectory

    from kernelhead.surgery import save as save_graft

    model = host()
    graft(model, "primal", rank=2)
    with TemporaryDirectory() as folder:
        save_graft(model, Path(folder) / "a")
        return (Path(folder) / "a").read_bytes()


@cache
def reranker() -> bytes:
    from tempfile import TemporaryDirectory

    made = Reranker(
        k=4,
        anchors=4,
        width=8,
        depth=1,
        heads=2,
        steps=2,
        batch=2,
        neighbours=2,
        rank=2,
        landmarks=4,
        random_state=0,
    )
    made.fit(np.random.default_rng(0).normal(size=(16, 3)), np.arange(16) % 2)
    with TemporaryDirectory() as folder:
        made.save(Path(folder) / "a")
        return (Path(folder) / "a").read_bytes()


def told(path: Path) -> None:
    """A YAML file of options of events, as the command line reads it; zero epochs are refused in any case."""
    data = path.parent / "events.csv"
    data.write_bytes(EVENTS)
    said = io.StringIO()
    with redirect_stderr(said), redirect_stdout(io.StringIO()):
        code = main(["train", str(data), "--events", str(path), "--epochs", "0"])
    lines = said.getvalue().strip().splitlines()
    if code != 2 or not lines or not lines[-1].startswith("kernelhead: "):
        raise AssertionError(f"exit code {code}: {said.getvalue()}")
    raise BadInput(lines[-1])


def summed(path: Path) -> None:
    """The summary of a run folder of which one record is a stranger's."""
    (path.parent / CONFIG).write_text("{}") if path.name != CONFIG else None
    summary([path.parent])


def in_run(kind: str) -> Callable[[Path], Any]:
    return lambda path: (load_event_run if kind == "events" else load_run)(path.parent)


def series_archives() -> list[bytes]:
    return [
        arrays(x=np.zeros((3, 4, 2)), y=np.array([0, 1, 1]), classes=np.array(["a", "b"]), length=[4, 2, 1]),
        arrays(x_train=np.zeros((2, 3, 1), np.float32), y_train=np.array(["a", "b"]), len_train=[3, 1]),
    ]


def jobs_in(field: str) -> Callable[[Path], Any]:
    return lambda path: jobs_of(field, recipes=path, protocol="clean", seeds=1, only=[], root=None)


def compressed() -> bytes:
    import lzma

    return lzma.compress(b"to be or\nnot to be\n")


TARGETS = {
    "series .ts": Target("a.ts", read_series, lambda: [TS]),
    "series .csv": Target("a.csv", read_series, lambda: [SERIES]),
    "series .npz": Target("a.npz", read_series, series_archives),
    "events .csv": Target("a.csv", read_events, lambda: [EVENTS]),
    "features .csv": Target("a.csv", read_features, lambda: [FEATURES]),
    "features .npy": Target("a.npy", read_features, lambda: [array(np.eye(3))]),
    "features .npz": Target(
        "a.npz", read_features, lambda: [arrays(x=np.eye(2), ids=["a", "b"], labels=[1, 2])]
    ),
    "table .csv": Target("a.csv", read_table, lambda: [TABLE]),
    "table .npz": Target(
        "a.npz",
        read_table,
        lambda: [arrays(x=np.eye(4), y=np.arange(4.0), test_mask=np.eye(4, dtype=bool), columns=[*"abcd"])],
    ),
    "images .npz": Target(
        "set/train.npz",
        lambda path: read_images(path.parent),
        lambda: [arrays(x=np.zeros((4, 3, 5, 5), np.uint8), y=np.array([0, 1, 0, 1]), classes=["a", "b"])],
    ),
    "inputs .npz": Target(
        "a.npz",
        lambda path: read_inputs(Host(torch.nn.Identity()), path),
        lambda: [arrays(x=np.zeros((3, 2)), mask=np.ones((3, 2)))],
    ),
    "inputs .npy": Target(
        "a.npy",
        lambda path: read_inputs(Host(torch.nn.Identity()), path),
        lambda: [array(np.zeros((3, 2), np.float32))],
    ),
    "recipes .toml": Target("a.toml", read_recipes, lambda: [RECIPE]),
    "grid of series .toml": Target("a.toml", jobs_in("uea"), lambda: [GRID]),
    "grid of texts .toml": Target("a.toml", jobs_in("text"), lambda: [GRID_OF_TEXTS]),
    "options .yaml": Target("a.yaml", told, lambda: [YAML]),
    "record .json": Target("a.json", read_json, lambda: [b'{"a": [1, 2.5, null], "b": {"c": "d"}}']),
    "configuration .json": Target(
        CONFIG,
        lambda path: event_recipe_from(read_json(path), "drill"),
        lambda: [b'{"data": "a.csv", "epochs": 3, "lr": 1, "events": {"time": "mercer", "longest": 2}}'],
    ),
    "metrics .jsonl": Target(METRICS, read_lines, lambda: [METRIC]),
    "summary of metrics": Target(METRICS, summed, lambda: [METRIC]),
    "summary of a result": Target(
        RESULT,
        summed,
        lambda: [b'{"name": "a", "test_accuracy": 0.5, "parameters": 12, "best_epoch": 2}'],
    ),
    "ledger .json": Target("a.json", lambda path: Ledger(path).by_job(), lambda: [LEDGER]),
    "vectors .txt": Target("a.txt", CooccurrenceEmbedding.load, lambda: [VECTORS]),
    "sentences .txt": Target("a.txt", lambda path: [*read_sentences(path)], lambda: [b"to be or\nnot"]),
    "sentences .xz": Target("a.xz", lambda path: [*read_sentences(path)], lambda: [compressed()]),
    "tensors .safetensors": Target(
        "a.safetensors",
        load_tensors,
        lambda: [save({"a": torch.zeros(2, 3), "b": torch.ones(1)}, {"facts": "{}"})],
    ),
    "weights of series": Target(
        WEIGHTS, in_run("series"), lambda: [(trained("series") / WEIGHTS).read_bytes()]
    ),
    "weights of events": Target(
        WEIGHTS, in_run("events"), lambda: [(trained("events") / WEIGHTS).read_bytes()]
    ),
    "graft .safetensors": Target("a.safetensors", lambda path: load(host(), path), lambda: [grafted()]),
    "re-ranker .safetensors": Target("a.safetensors", Reranker.load, lambda: [reranker()]),
}
