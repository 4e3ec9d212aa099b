"""What a graft or a restore did, to read and to keep."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True)
class Graft:
    """One attention of a model that calls a core of ours.

    Attributes:
        path: dotted path of the host's attention module.
        family: the host's library.
        kind: class of the host's module.
        method: name of the core.
        options: what builds the core again.
        parameters: how many were added.
        frozen: parameters of the module that the core leaves unused and that were frozen, by name.
        seed: of the weights the core began with.
        fit: relative errors of the core's output, where its weights were fitted to data.
    """

    path: str
    family: str
    kind: str
    method: str
    options: Mapping[str, Any]
    parameters: int
    frozen: tuple[str, ...]
    seed: int
    fit: Mapping[str, float] | None = None

    def __str__(self) -> str:
        parts = [
            f"{self.path} ({self.kind}, {self.family}): {self.method}, {self.parameters:,} parameters added"
        ]
        if self.fit is not None:
            parts.append("fitted, " + ", ".join(f"{name} {value:.3g}" for name, value in self.fit.items()))
        if self.frozen:
            parts.append(f"frozen: {', '.join(self.frozen)}")
        return "; ".join(parts)


@dataclass(frozen=True)
class Report:
    """What a change to a model did, or would do.

    Attributes:
        action: ``"graft"``, ``"restore"`` or ``"load"``.
        done: the grafts that were put in, or taken out.
        replaced: paths that had another graft before.
        unchanged: paths that had this very graft already.
        skipped: path to the reason for leaving an attention alone.
        dry_run: whether nothing was changed.
    """

    action: str
    done: tuple[Graft, ...]
    replaced: tuple[str, ...] = ()
    unchanged: tuple[str, ...] = ()
    skipped: Mapping[str, str] = field(default_factory=dict)
    dry_run: bool = False

    @property
    def parameters(self) -> int:
        """How many parameters were added, or taken out."""
        return sum(each.parameters for each in self.done)

    @property
    def frozen(self) -> tuple[str, ...]:
        """Full names of the host's parameters that were frozen, or set free again."""
        return tuple(f"{each.path}.{name}".lstrip(".") for each in self.done for name in each.frozen)

    def record(self) -> dict[str, Any]:
        """The report as a JSON object."""
        return {**asdict(self), "parameters": self.parameters}

    def __str__(self) -> str:
        head = f"{self.action}{' (dry run)' if self.dry_run else ''}"
        many = "" if len(self.done) == 1 else "s"
        return "\n".join(
            [
                f"{head}: {len(self.done)} attention{many}, {self.parameters:,} parameters",
                *(f"  {each}" for each in self.done),
                *(f"  {path}: replaced another graft" for path in self.replaced),
                *(f"  {path}: unchanged, it has this graft already" for path in self.unchanged),
                *(f"  {path}: skipped, it {reason}" for path, reason in self.skipped.items()),
            ]
        )
