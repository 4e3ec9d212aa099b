"""Apply, as modules: each projects, calls an op and joins."""

from kernelhead.nn.base import AbstractKernelAttention, Attended, Moments
from kernelhead.nn.cooccurrence import DistributionalAttention, start_from_kernel
from kernelhead.nn.cores import AbstractCore, LinearCore, PrimalCore, RPCCore, SoftmaxCore, core_of
from kernelhead.nn.datapoints import AttributeAttention, DatapointAttention
from kernelhead.nn.dropout import Dropout
from kernelhead.nn.embedding import Embedding
from kernelhead.nn.heads import merge_heads, split_heads
from kernelhead.nn.hosts import Sides, Site, find_sites, reading
from kernelhead.nn.inducing import InducingAttention, PooledPrimalAttention
from kernelhead.nn.linear import LinearAttention, NystromAttention, PerformerAttention
from kernelhead.nn.local import LocalMixing
from kernelhead.nn.modes import evaluating
from kernelhead.nn.normed import NormedAttention
from kernelhead.nn.penalties import ksvd_parts, ksvd_penalty
from kernelhead.nn.polynomial import PolynomialAttention
from kernelhead.nn.primal import PrimalAttention, PrimalState
from kernelhead.nn.rpc import RPCAttention, SymmetricAttention
from kernelhead.nn.scaled import ScaledAttention
from kernelhead.nn.softmax import SoftmaxAttention, SoftmaxState
from kernelhead.nn.tape import Tape, record
from kernelhead.nn.time import TimeAwareAttention, TimeEncoding
from kernelhead.nn.wide import WideAttention

__all__ = [
    "AbstractCore",
    "AbstractKernelAttention",
    "Attended",
    "AttributeAttention",
    "DatapointAttention",
    "DistributionalAttention",
    "Dropout",
    "Embedding",
    "InducingAttention",
    "LinearAttention",
    "LinearCore",
    "LocalMixing",
    "Moments",
    "NormedAttention",
    "NystromAttention",
    "PerformerAttention",
    "PolynomialAttention",
    "PooledPrimalAttention",
    "PrimalAttention",
    "PrimalCore",
    "PrimalState",
    "RPCAttention",
    "RPCCore",
    "ScaledAttention",
    "Sides",
    "Site",
    "SoftmaxAttention",
    "SoftmaxCore",
    "SoftmaxState",
    "SymmetricAttention",
    "Tape",
    "TimeAwareAttention",
    "TimeEncoding",
    "WideAttention",
    "core_of",
    "evaluating",
    "find_sites",
    "ksvd_parts",
    "ksvd_penalty",
    "merge_heads",
    "reading",
    "record",
    "split_heads",
    "start_from_kernel",
]
