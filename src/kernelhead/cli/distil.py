"""kernelhead distil: teach what was grafted to do what the host did."""

from jsonargparse import ArgumentParser, Namespace
from rich.table import Table

from kernelhead.cli.places import FILE, check_place
from kernelhead.cli.sites import MODEL
from kernelhead.cli.terminal import note, say_json, show
from kernelhead.errors import BadInput
from kernelhead.records import write_json
from kernelhead.surgery import load, open_host, read_inputs, save
from kernelhead.training import Course, Distilled, distil

HELP = "train grafted attention to do what the host did, layer by layer and then as a whole, without labels"
EXAMPLE = "kernelhead distil path/to/saved/bert primal.safetensors --data text.txt --out taught.safetensors"


def arguments(parser: ArgumentParser) -> None:
    """What the verb takes."""
    parser.add_argument("model", help=MODEL)
    parser.add_argument("graft", type=FILE, help="safetensors file of a graft")
    parser.add_argument("--weights", type=FILE, help="safetensors of a timm model or a function's")
    parser.add_argument("--data", type=FILE, required=True, help="text, .npy or .npz to learn from")
    parser.add_argument("--cases", type=int, help="of the data, at most; all by default")
    parser.add_argument("--length", type=int, default=128, help="tokens of a text, at most")
    parser.add_argument("--steps", type=int, default=200, help="of the first part, core by core")
    parser.add_argument("--whole-steps", type=int, default=200, help="of the second; 0 to leave it out")
    parser.add_argument("--batch", type=int, default=16, help="cases of a step")
    parser.add_argument("--lr", type=float, default=1e-3, help="largest rate of the first part")
    parser.add_argument("--whole-lr", type=float, default=3e-4, help="of the second")
    parser.add_argument("--eta", type=float, default=0.0, help="weight of the KSVD penalty in the second")
    parser.add_argument("--train", default="cores", help="what the second trains: cores, attention or all")
    parser.add_argument("--validation", type=float, default=0.1, help="share of the cases that is held out")
    parser.add_argument("--seed", type=int, default=0, help="of the order of cases and of what is held out")
    parser.add_argument(
        "--out", type=FILE, required=True, help="safetensors file to write; FILE.json beside it"
    )
    parser.add_argument("--json", action="store_true", help="print the JSON record")


def run(chosen: Namespace, given: list[str]) -> int:
    """Open, load, teach, save, say."""
    check_place("distil", chosen.out)
    if chosen.out.suffix == ".json":
        raise BadInput(f"distil: {chosen.out} is where learning curves would go; give --out another ending")
    host = open_host(chosen.model, weights=chosen.weights)
    load(host.model, chosen.graft)
    inputs = read_inputs(host, chosen.data, cases=chosen.cases, length=chosen.length)
    shared = {"weight_decay": 0.0, "seed": chosen.seed}
    whole = None
    if chosen.whole_steps:
        whole = Course(
            chosen.whole_steps,
            chosen.batch,
            lr=chosen.whole_lr,
            eta=chosen.eta,
            reduction="sample",
            **shared,
        )
    taught = distil(
        host.model,
        inputs,
        layers=Course(chosen.steps, chosen.batch, lr=chosen.lr, **shared),
        whole=whole,
        train=chosen.train,
        validation=chosen.validation,
    )
    save(host.model, chosen.out, whole=chosen.train != "cores")
    write_json(chosen.out.with_suffix(".json"), taught.record())
    if chosen.json:
        say_json(taught.record())
    else:
        _say(taught)
        note(f"written to {chosen.out}, learning curves to {chosen.out.with_suffix('.json')}")
    return 0


def _say(taught: Distilled) -> None:
    table = Table("relative error, held out", "before", "after")
    for path, (before, after) in taught.sites.items():
        table.add_row(path, f"{before:.4f}", f"{after:.4f}")
    table.add_row("output", f"{taught.output[0]:.4f}", f"{taught.output[2]:.4f}")
    show(table)
