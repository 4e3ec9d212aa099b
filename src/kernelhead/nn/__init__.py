"""Apply, as modules: each projects, calls an op and joins."""

from kernelhead.nn.base import AbstractKernelAttention, Attended, Moments
from kernelhead.nn.heads import merge_heads, split_heads
from kernelhead.nn.linear import LinearAttention, NystromAttention, PerformerAttention
from kernelhead.nn.local import LocalMixing
from kernelhead.nn.modes import evaluating
from kernelhead.nn.penalties import ksvd_penalty
from kernelhead.nn.primal import PrimalAttention, PrimalState
from kernelhead.nn.rpc import RPCAttention, SymmetricAttention
from kernelhead.nn.scaled import ScaledAttention
from kernelhead.nn.softmax import SoftmaxAttention, SoftmaxState
from kernelhead.nn.tape import Tape, record

__all__ = [
    "AbstractKernelAttention",
    "Attended",
    "LinearAttention",
    "LocalMixing",
    "Moments",
    "NystromAttention",
    "PerformerAttention",
    "PrimalAttention",
    "PrimalState",
    "RPCAttention",
    "ScaledAttention",
    "SoftmaxAttention",
    "SoftmaxState",
    "SymmetricAttention",
    "Tape",
    "evaluating",
    "ksvd_penalty",
    "merge_heads",
    "record",
    "split_heads",
]
