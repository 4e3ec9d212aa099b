"""kernelhead restore: the host out of a graft, as it was or as it was trained."""

from jsonargparse import ArgumentParser, Namespace

from kernelhead.cli.places import FILE
from kernelhead.cli.sites import MODEL
from kernelhead.cli.terminal import note, say, say_json
from kernelhead.surgery import load, open_host, restore, write_host

HELP = "take a graft out of a model again, and write the host"
EXAMPLE = "kernelhead restore path/to/saved/bert primal.safetensors --out host.safetensors"


def arguments(parser: ArgumentParser) -> None:
    """What the verb takes."""
    parser.add_argument("model", help=MODEL)
    parser.add_argument("graft", type=FILE, help="safetensors file of a graft")
    parser.add_argument("--weights", type=FILE, help="safetensors of a timm model or a function's")
    parser.add_argument(
        "--out", type=FILE, required=True, help="safetensors file to write, the host's weights"
    )
    parser.add_argument("--json", action="store_true", help="print a JSON record")


def run(chosen: Namespace, given: list[str]) -> int:
    """Open, load, restore, write, say."""
    host = open_host(chosen.model, weights=chosen.weights)
    load(host.model, chosen.graft)
    report = restore(host.model)
    write_host(host.model, chosen.out)
    if chosen.json:
        say_json(report.record())
    else:
        say(str(report))
        note(f"written to {chosen.out}")
    return 0
