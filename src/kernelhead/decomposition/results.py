"""What a decomposition returns: frozen, named, and able to say how good it is."""

from dataclasses import dataclass

from torch import Tensor

from kernelhead.pattern import Factored


@dataclass(frozen=True, eq=False)
class KSVD:
    r"""A kernel SVD $K \approx U\,\mathrm{diag}(\sigma)\,V^\top$ with the checks of its optimality.

    Attributes:
        left: left singular vectors U, (... n s).
        values: singular values, largest first, (... s).
        right: right singular vectors V, (... m s).
        objective: J of the primal problem at these vectors, (...); zero at a solution.
        trace: Tr of the product of both primal weights, (...); the sum of the values at a solution.
        left_residual: |K V - U S| over |S|, (...), the first half of the shifted eigenproblem.
        right_residual: |K'U - V S| over |S|, (...), the second half.
    """

    left: Tensor
    values: Tensor
    right: Tensor
    objective: Tensor
    trace: Tensor
    left_residual: Tensor
    right_residual: Tensor

    @property
    def rank(self) -> int:
        """How many components were kept."""
        return self.values.shape[-1]

    @property
    def left_scores(self) -> Tensor:
        """Scores of the left points, U S, (... n s)."""
        return self.left * self.values.unsqueeze(-2)

    @property
    def right_scores(self) -> Tensor:
        """Scores of the right points, V S, (... m s)."""
        return self.right * self.values.unsqueeze(-2)

    def pattern(self) -> Factored:
        """The kernel of this rank, as factors."""
        return Factored(self.left, self.values, self.right)
