"""Attention after the projections, as modules."""

from kernelhead.nn.cores.base import AbstractCore, Call
from kernelhead.nn.cores.linear import LinearCore, NystromCore, PerformerCore
from kernelhead.nn.cores.names import CORES, core_of
from kernelhead.nn.cores.primal import PrimalCore
from kernelhead.nn.cores.rpc import RPCCore
from kernelhead.nn.cores.softmax import SoftmaxCore

__all__ = [
    "CORES",
    "AbstractCore",
    "Call",
    "LinearCore",
    "NystromCore",
    "PerformerCore",
    "PrimalCore",
    "RPCCore",
    "SoftmaxCore",
    "core_of",
]
