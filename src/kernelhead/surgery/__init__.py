"""Someone else's model, our attention: graft, restore, save, load."""

from kernelhead.surgery.graft import graft, grafts, restore
from kernelhead.surgery.hosts import Host, batches, is_host, open_host, read_inputs, write_host
from kernelhead.surgery.initial import fit_primal
from kernelhead.surgery.report import Graft, Report
from kernelhead.surgery.sites import sites
from kernelhead.surgery.store import load, save

__all__ = [
    "Graft",
    "Host",
    "Report",
    "batches",
    "fit_primal",
    "graft",
    "grafts",
    "is_host",
    "load",
    "open_host",
    "read_inputs",
    "restore",
    "save",
    "sites",
    "write_host",
]
