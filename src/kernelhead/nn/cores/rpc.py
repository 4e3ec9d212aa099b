"""Attention of keys to keys inside a pursuit, after the projections."""

from dataclasses import replace
from math import isclose
from typing import Any

from kernelhead.errors import BadInput, unknown
from kernelhead.nn.base import Attended
from kernelhead.nn.cores.base import AbstractCore, Call, last_rows
from kernelhead.nn.rpc import PRESETS
from kernelhead.nn.softmax import without_padding
from kernelhead.ops import Pursuit, rpc_attention, rpc_pattern
from kernelhead.pattern import Dense


class RPCCore(AbstractCore):
    r"""Attention of keys to themselves inside a pursuit of what is sparse in them; see `rpc_attention`.

    Queries are not read. With fewer queries than keys the outputs are those of the last keys; the keys
    before are pursued again. Time grows as t m^2 for t iterations.

    Shapes: as `AbstractCore`.

    Args:
        heads: heads h.
        head: features of a head, d.
        iterations: attentions t.
        strength: lambda, the preset's if None: 4 published, 0.75 corrected.
        preset: "published" or "corrected".

    Raises:
        BadInput: a number is out of its range.
        UnknownName: no such preset.

    Example:
        >>> import torch
        >>> x = torch.randn(1, 2, 5, 4)
        >>> core = RPCCore(2, 4, iterations=2, preset="corrected")
        >>> core(x[:, :, -1:], x, x, causal=True).shape, sorted(core.unused)
        (torch.Size([1, 2, 1, 4]), ['query'])
    """

    name = "rpc"
    unused = frozenset({"query"})

    def __init__(
        self,
        heads: int,
        head: int,
        *,
        iterations: int = 4,
        strength: float | None = None,
        preset: str = "published",
    ) -> None:
        super().__init__(heads, head)
        if preset not in PRESETS:
            raise unknown("RPCCore", "preset", preset, PRESETS)
        base = PRESETS[preset](iterations)
        self.preset = preset
        self.pursuit = base if strength is None else replace(base, strength=strength)

    def options(self) -> dict[str, Any]:
        """Iterations, strength and preset."""
        pursuit = self.pursuit
        return {"iterations": pursuit.iterations, "strength": pursuit.strength, "preset": self.preset}

    def attend(self, call: Call) -> Attended:
        """The pursuit in every head."""
        usual = self.head**-0.5
        if call.scale is not None and not isclose(call.scale, usual, rel_tol=1e-6):
            raise BadInput(
                f"RPCCore: scales inner products by 1 / sqrt(d), {usual:.6g}, but `scale` is {call.scale:.6g}"
            )
        n, mask, causal, pursuit = call.query.shape[-2], call.mask, call.causal, self._scoped(call.causal)
        mixed = rpc_attention(call.key, call.value, pursuit=pursuit, mask=mask, causal=causal)
        pattern = None
        if call.keep == "patterns":
            entries = rpc_pattern(call.key, call.value, pursuit=pursuit, mask=mask, causal=causal)
            pattern = last_rows(without_padding(Dense(entries), mask), n)
        return Attended(mixed[..., -n:, :], pattern=pattern)

    def _scoped(self, causal: bool) -> Pursuit:
        """The pursuit, with bounds that see no later key if causal."""
        return replace(self.pursuit, scope="prefix" if causal else "sequence")
