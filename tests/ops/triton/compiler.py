"""Kernels that are compiled for a GPU in place of being launched, where there need not be one.

The interpreter takes code that the compiler refuses, such as a name that changes its type within a loop.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
import triton
from torch import Tensor
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.runtime.jit import JITFunction

KINDS = {
    torch.bool: "i1",
    torch.int8: "i8",
    torch.int32: "i32",
    torch.int64: "i64",
    torch.float16: "fp16",
    torch.bfloat16: "bf16",
    torch.float32: "fp32",
}


def _type_of(value: object) -> str:
    """How the launcher calls what it is given: nothing, and a size of one, are part of the code."""
    if isinstance(value, Tensor):
        return f"*{KINDS[value.dtype]}"
    if value is None or (isinstance(value, int) and value == 1):
        return "constexpr"
    return "i32" if isinstance(value, int) else "fp32"


@contextmanager
def launches_compile(capability: int = 90) -> Iterator[dict[str, int]]:
    """A with-block in which launches compile and write nothing.

    Names of kernels gather, with the most bytes of shared memory that each has taken.
    """
    names: dict[str, int] = {}
    target = GPUTarget("cuda", capability, 32)

    def compiled(kernel: Any, *args: object, grid: object, warmup: bool, **options: object) -> None:
        given = dict(zip([each.name for each in kernel.params], args, strict=False))
        given |= {each.name: options.pop(each.name) for each in kernel.params if each.name in options}
        types = {
            each.name: "constexpr" if each.is_constexpr else _type_of(given[each.name])
            for each in kernel.params
        }
        values = {(at,): given[name] for at, (name, kind) in enumerate(types.items()) if kind == "constexpr"}
        even = {
            (at,): [["tt.divisibility", 16]]
            for at, (name, kind) in enumerate(types.items())
            if kind.startswith("*") or (kind == "i32" and given[name] % 16 == 0)
        }
        made = triton.compile(ASTSource(kernel, types, values, even), target=target, options=options)
        name = f"{kernel.__module__.rpartition('.')[2]}.{kernel.__name__}"
        if "trap;" in made.asm["ptx"]:
            raise AssertionError(f"{name}: the compiler gave up and made a trap of it")
        names[name] = max(names.get(name, 0), made.metadata.shared)

    with patch.object(JITFunction, "run", compiled):
        yield names
