"""The switches of Principal Attention Pursuit, with the two settings that have a name."""

from dataclasses import dataclass

from kernelhead.errors import BadInput, unknown
from kernelhead.shapes import check_size

SIGNS = ("preprint", "journal")
THRESHOLDS = ("times_mu", "over_mu")
WIDTHS = ("embed", "head")
SCOPES = ("sequence", "prefix")


@dataclass(frozen=True)
class Pursuit:
    r"""How keys are split into a part that attention reproduces and a sparse part.

    With $\mu = w / (4 \, \mathrm{mean}|K|)$ entries beyond $\tau = \lambda\mu$ or $\lambda/\mu$ are
    clipped. `published` is the released code; `corrected` is principal component pursuit as its
    journal version has it, where $\tau = 4\lambda\,\mathrm{mean}|K|$ grows with the keys.

    Args:
        iterations: attention evaluations, one or more.
        strength: lambda, zero or more.
        sign: of the dual variable in the keys that attend, "preprint" (minus) or "journal" (plus).
        threshold: tau, "times_mu" or "over_mu".
        width: what w counts, "embed" (the heads) or "head" (one).
        scope: keys that mean|K| is taken over, "sequence" (all) or "prefix" (those up to a point).
        guard: least mean|K|; at 0 all-zero keys make an infinite tau "times_mu", with NaN gradients.

    Raises:
        UnknownName: a switch has no such position.
        BadInput: a number is out of its range.

    Example:
        >>> Pursuit.corrected(2, 0.75).threshold
        'over_mu'
    """

    iterations: int
    strength: float
    sign: str = "preprint"
    threshold: str = "times_mu"
    width: str = "embed"
    scope: str = "sequence"
    guard: float = 0.0

    def __post_init__(self) -> None:
        check_size("Pursuit", "iterations", self.iterations)
        for name, known in (
            ("sign", SIGNS),
            ("threshold", THRESHOLDS),
            ("width", WIDTHS),
            ("scope", SCOPES),
        ):
            if getattr(self, name) not in known:
                raise unknown("Pursuit", name, getattr(self, name), known)
        for name in ("strength", "guard"):
            if not 0 <= getattr(self, name) < float("inf"):
                raise BadInput(f"Pursuit: {name} is {getattr(self, name)!r}, expected a number from 0 on")

    @classmethod
    def published(
        cls, iterations: int = 4, strength: float = 4.0, *, scope: str = "sequence", guard: float = 0.0
    ) -> "Pursuit":
        """The released code: minus sign, lambda times mu, mu with the width of all heads, no guard."""
        return cls(iterations, strength, scope=scope, guard=guard)

    @classmethod
    def corrected(
        cls, iterations: int = 4, strength: float = 0.75, *, scope: str = "sequence", guard: float = 1e-12
    ) -> "Pursuit":
        """The journal's pursuit: plus sign, lambda over mu, mu with the width of a head, guarded."""
        return cls(iterations, strength, "journal", "over_mu", "head", scope, guard)
