"""kernelhead graft: our attention in someone else's model, written to a file."""

from jsonargparse import ArgumentParser, Namespace

from kernelhead.cli.places import FILE, check_place
from kernelhead.cli.sites import MODEL
from kernelhead.cli.terminal import note, say, say_json
from kernelhead.errors import BadInput
from kernelhead.surgery import batches, graft, open_host, read_inputs, save

HELP = "put our attention into a model of torch, timm or Hugging Face, and save what was added"
EXAMPLE = """kernelhead graft path/to/saved/bert --rank 16 --data text.txt --out primal.safetensors
kernelhead graft timm:vit_small_patch16_224 --where all --rank 16 --dry-run"""


def arguments(parser: ArgumentParser) -> None:
    """What the verb takes."""
    parser.add_argument("model", help=MODEL)
    parser.add_argument("--weights", type=FILE, help="safetensors of a timm model or a function's")
    parser.add_argument("--to", default="primal", help="primal, rpc, linear, softmax, ...")
    parser.add_argument(
        "--where", nargs="+", default=["last"], help="last, all, or paths or numbers of sites"
    )
    parser.add_argument("--rank", type=int, help="components of a primal core")
    parser.add_argument(
        "--landmarks",
        type=int,
        help="of a primal core that joins its scores as published; it is nearer to its host without",
    )
    parser.add_argument("--data", type=FILE, help="text, .npy or .npz to fit primal cores to")
    parser.add_argument("--cases", type=int, default=128, help="of the data, at most")
    parser.add_argument("--length", type=int, default=128, help="tokens of a text, at most")
    parser.add_argument("--seed", type=int, default=0, help="of random weights")
    parser.add_argument("--out", type=FILE, help="safetensors file to write")
    parser.add_argument("--dry-run", action="store_true", help="say what would be done, and stop")
    parser.add_argument("--json", action="store_true", help="print a JSON record")


def run(chosen: Namespace, given: list[str]) -> int:
    """Open, graft, save, say."""
    if chosen.out is None and not chosen.dry_run:
        raise BadInput(
            "graft: nothing would remain of it; --out names a file to write, --dry-run only reports"
        )
    if not chosen.dry_run:
        check_place("graft", chosen.out)
    host = open_host(chosen.model, weights=chosen.weights)
    data = None
    if chosen.data is not None:
        data = batches(read_inputs(host, chosen.data, cases=chosen.cases, length=chosen.length))
    report = graft(
        host.model,
        chosen.to,
        places(chosen.where),
        rank=chosen.rank,
        landmarks=chosen.landmarks,
        data=data,
        seed=chosen.seed,
        dry_run=chosen.dry_run,
    )
    if not chosen.dry_run:
        save(host.model, chosen.out)
    if chosen.json:
        say_json(report.record())
    else:
        say(str(report))
        note("nothing was changed" if chosen.dry_run else f"written to {chosen.out}")
    return 0


def places(words: list[str]) -> str | list[str | int]:
    """Where, as `graft` takes it: last, all, or paths and numbers.

    Example:
        >>> places(["last"]), places(["3", "encoder.layer.5"])
        ('last', [3, 'encoder.layer.5'])
    """
    if words in (["last"], ["all"]):
        return words[0]
    return [int(word) if word.lstrip("-").isdecimal() else word for word in words]
