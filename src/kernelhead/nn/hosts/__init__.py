"""Attention in someone else's model: where it is, and what its core gets."""

from kernelhead.nn.hosts.sides import Sides
from kernelhead.nn.hosts.site import FAMILIES, Family, Note, Site, core_of_graft
from kernelhead.nn.hosts.sites import LOOKED_FOR, find_sites
from kernelhead.nn.hosts.taps import tapped
from kernelhead.nn.hosts.torchvision import mend_torchvision
from kernelhead.nn.hosts.watching import called, reading

__all__ = [
    "FAMILIES",
    "LOOKED_FOR",
    "Family",
    "Note",
    "Sides",
    "Site",
    "called",
    "core_of_graft",
    "find_sites",
    "mend_torchvision",
    "reading",
    "tapped",
]
