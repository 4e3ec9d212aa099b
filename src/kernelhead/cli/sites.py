"""kernelhead sites: every attention of a model, and which can be grafted."""

from typing import Any

from jsonargparse import ArgumentParser, Namespace
from rich.table import Table

from kernelhead.cli.places import FILE
from kernelhead.cli.terminal import say, say_json, show
from kernelhead.errors import BadInput
from kernelhead.nn.hosts import LOOKED_FOR
from kernelhead.surgery import open_host, sites

HELP = "list every attention of a model of torch, timm or Hugging Face, and what can be grafted"
EXAMPLE = "kernelhead sites path/to/saved/bert"
MODEL = "folder of a saved Hugging Face model, timm:NAME, or package.module:function"


def arguments(parser: ArgumentParser) -> None:
    """What the verb takes."""
    parser.add_argument("model", help=MODEL)
    parser.add_argument("--weights", type=FILE, help="safetensors of a timm model or a function's")
    parser.add_argument("--json", action="store_true", help="print a JSON record")


def run(chosen: Namespace, given: list[str]) -> int:
    """Open, look, print."""
    model = open_host(chosen.model, weights=chosen.weights).model
    found = sites(model)
    if not found:
        raise BadInput(f"sites: {type(model).__name__} has no attention; looked for {LOOKED_FOR}")
    rows = [{**_plain(site), "reason": site.reason} for site in found]
    if chosen.json:
        say_json({"model": type(model).__name__, "sites": rows})
        return 0
    table = Table("path", "kind", "width", "heads", "kv", "head", "sees", "graft")
    for row in rows:
        sees = ("causal, " if row["causal"] else "") + ("another sequence" if row["cross"] else "itself")
        sizes = [str(row[name]) for name in ("width", "heads", "kv_heads", "head")]
        table.add_row(row["path"], f"{row['family']} {row['kind']}", *sizes, sees, row["reason"] or "yes")
    show(table)
    able = sum(site.reason is None for site in found)
    say(f"{type(model).__name__}: {len(found)} attentions, {able} of them can be grafted")
    return 0


def _plain(site: Any) -> dict[str, Any]:
    """A site without its module."""
    names = ("path", "family", "kind", "width", "heads", "kv_heads", "head", "causal", "cross")
    return {name: getattr(site, name) for name in names}
