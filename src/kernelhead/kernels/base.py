"""What every kernel is: a feature map for each side and the closed form that their product stands for."""

from abc import ABC, abstractmethod
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, Self

from torch import Tensor

from kernelhead.pattern import Factored
from kernelhead.shapes import check_axes


@dataclass(frozen=True, eq=False)
class AbstractKernel(ABC):
    """A kernel between left and right points with finite features; subclasses are frozen dataclasses.

    ``left_features(q) @ right_features(k).mT`` equals `entries`, or converges to it where the
    features are random.

    Attributes:
        formula: the kernel that the features stand for.
        keeps_width: whether features are as wide as points.
    """

    formula: ClassVar[str]
    keeps_width: ClassVar[bool] = True

    @abstractmethod
    def features(self, points: Tensor) -> Tensor:
        """The feature map of both sides, (... n d) to (... n p)."""

    @abstractmethod
    def entries(self, left: Tensor, right: Tensor) -> Tensor:
        """The kernel in closed form, left (... n d) and right (... m d) to (... n m)."""

    def left_features(self, points: Tensor) -> Tensor:
        """The feature map of left points, (... n d) to (... n p)."""
        return self.features(points)

    def right_features(self, points: Tensor) -> Tensor:
        """The feature map of right points, (... m d) to (... m p)."""
        return self.features(points)

    def landmark_features(self, points: Tensor) -> Tensor:
        """The rows that data-dependent weights are spread over: the points as they are, where they fit."""
        return points if self.keeps_width else self.right_features(points)

    def feature_width(self, width: int) -> int:
        """How wide the features of points of a width are."""
        return width

    def pattern(self, left: Tensor, right: Tensor) -> Factored:
        """The kernel between two sets of points, as factors; no n-by-m matrix is made."""
        check_axes(type(self).__name__, left=(left, "... n d"), right=(right, "... m d"))
        features = self.left_features(left)
        return Factored(features, features.new_ones(features.shape[-1]), self.right_features(right))

    def tensors(self) -> dict[str, Tensor]:
        """The tensors that the kernel holds, by field name, so that a module can own them."""
        held = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in held.items() if isinstance(value, Tensor)}

    def with_tensors(self, tensors: dict[str, Tensor]) -> Self:
        """The same kernel with other tensors in its fields."""
        changes: dict[str, Any] = dict(tensors)
        return replace(self, **changes) if changes else self
