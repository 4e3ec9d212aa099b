"""Attention by co-occurrence: fixed, with nothing learned, or as the start of a layer that learns."""

import torch
from torch import Tensor

from kernelhead.decomposition.cooccurrence import Kernel, factor_within
from kernelhead.errors import BadInput, ShapeError, unknown
from kernelhead.kernels.cooccurrence import CooccurrenceKernel
from kernelhead.nn.base import AbstractRecorded, Attended
from kernelhead.nn.softmax import SoftmaxAttention
from kernelhead.ops.distributional import (
    NORMALISATIONS,
    distributional_pattern,
    distributional_profiles,
    distributional_scores,
)
from kernelhead.pattern import Dense, Factored, Pattern
from kernelhead.shapes import check_mask, zeroed


class DistributionalAttention(AbstractRecorded):
    r"""Attention whose scores are a fixed kernel between words: $M = Q S Q^\top$, then M times values.

    Nothing is learned. Values are the rows of the kernel itself, $Q S$, so that the output scores the
    vocabulary, or any vector a word. The published prediction is ``normalise="none"`` and `predict`.

    Shapes: words (b, n), places in the vocabulary; mask (b, n), True where real; returns (b, n, v), or
    (b, n, c) for values (v, c); zero at padded places.

    Args:
        kernel: between words, (v, v): a co-occurrence kernel, or a pattern, such as its factors.
        normalise: "row" for shares of a row's sum, "softmax", or "none".
        values: a vector a word, (v, c); the rows of the kernel if None.
        causal: whether a place sees itself and those before it only.

    Raises:
        ShapeError: the kernel is not square, or values are not one a word.
        BadInput: an entry is not finite, or rows are to be shares of a kernel with negative entries or of one
            that is held as factors.
        UnknownName: no such normalisation.

    Example:
        >>> kernel = Dense(torch.tensor([[0.0, 4.0, 6.0], [4.0, 0.0, 0.0], [6.0, 0.0, 0.0]]))
        >>> DistributionalAttention(kernel, normalise="none").predict(torch.tensor([[0, 1]]))
        tensor([[ 8.,  8., 12.]])
    """

    values: Tensor | None

    def __init__(
        self,
        kernel: Pattern | CooccurrenceKernel,
        *,
        normalise: str = "row",
        values: Tensor | None = None,
        causal: bool = False,
    ) -> None:
        super().__init__()
        who = type(self).__name__
        if normalise not in NORMALISATIONS:
            raise unknown(who, "normalisation", normalise, NORMALISATIONS)
        if not isinstance(kernel, Dense | Factored):
            kernel = kernel.pattern()
        if len(kernel.shape) != 2 or kernel.shape[0] != kernel.shape[1]:
            raise ShapeError(f"{who}: the kernel has shape {tuple(kernel.shape)}, expected (v, v)")
        held = vars(kernel)
        if not all(bool(each.isfinite().all()) for each in held.values()):
            raise BadInput(f"{who}: the kernel {tuple(kernel.shape)} holds NaN or infinity")
        if normalise == "row":
            _check_shares(who, kernel)
        if values is not None and (values.dim() != 2 or len(values) != kernel.shape[0]):
            raise ShapeError(
                f"{who}: `values` has shape {tuple(values.shape)}, expected ({kernel.shape[0]}, c)"
            )
        self.normalise, self.causal, self.vocabulary = normalise, causal, int(kernel.shape[0])
        self.names = tuple(held)
        for name, each in held.items():
            self.register_buffer(f"kernel_{name}", each)
        self.register_buffer("values", values)

    @property
    def kernel(self) -> Pattern:
        """The kernel between words, (v, v)."""
        held = {name: getattr(self, f"kernel_{name}") for name in self.names}
        return Dense(**held) if len(held) == 1 else Factored(**held)

    def scores(self, words: Tensor) -> Tensor:
        """The pattern before it is normalised, M, (b, n, n)."""
        self._check(words)
        self._check_known(words)
        return distributional_scores(self.kernel, words)

    def forward(self, words: Tensor, *, mask: Tensor | None = None) -> Tensor:
        """Attend; see the class for shapes."""
        self._check(words)
        check_mask(type(self).__name__, mask, words.unsqueeze(-1))
        words = words if mask is None else words.masked_fill(~mask, 0)
        self._check_known(words)
        keep = self._kept()
        scores = distributional_scores(self.kernel, words)
        pattern = Dense(
            distributional_pattern(scores, normalise=self.normalise, mask=mask, causal=self.causal)
        )
        values = distributional_profiles(self.kernel, words) if self.values is None else self.values[words]
        output = pattern.apply(zeroed(values, mask))
        if self.recorded is not None:
            kept = Dense(pattern.entries.unsqueeze(1)) if keep == "patterns" else None
            self._note(Attended(output, pattern=kept))
        return output

    def predict(self, words: Tensor, *, mask: Tensor | None = None) -> Tensor:
        """Scores of what goes with a text: the mean of the output over its words, (b, n) to (b, c)."""
        output = self(words, mask=mask)
        if mask is None:
            return output.mean(1)
        return output.sum(1) / mask.sum(1, keepdim=True).clamp_min(1)

    def _check(self, words: Tensor) -> None:
        if words.dim() != 2 or words.is_floating_point() or words.shape[1] == 0:
            raise BadInput(
                f"{type(self).__name__}: `words` is {words.dtype} of shape {tuple(words.shape)}, "
                "expected whole numbers (b, n), n of 1 or more"
            )

    def _check_known(self, words: Tensor) -> None:
        # A look at values would make a GPU wait, and cannot be traced.
        if words.is_cuda or torch.compiler.is_compiling():
            return
        low, high = int(words.min()), int(words.max())
        if low < 0 or high >= self.vocabulary:
            raise BadInput(
                f"{type(self).__name__}: words run from {low} to {high}, expected 0 to {self.vocabulary - 1}"
            )


@torch.no_grad()
def start_from_kernel(
    layer: SoftmaxAttention, points: Tensor, kernel: Kernel, *, temperature: float = 1.0, split: str = "block"
) -> SoftmaxAttention:
    """Set queries and keys so that scores of points sum to a kernel over heads, as nearly as they can.

    Values and the output are left as they are, biases of both sides become zero. Each head gets a share of
    the components, and has a softmax of its own.

    Shapes: points (v, c), what the layer is given for each word; kernel (v, v).

    Args:
        layer: changed in place.
        temperature: the kernel is divided by it.
        split: how components are dealt to heads; see `factor_pairs`.

    Returns:
        The layer.

    Raises:
        ShapeError: points do not fit the layer or the kernel.
        BadInput: the temperature is not above 0.
        UnknownName: no such split.

    Example:
        >>> layer, points = SoftmaxAttention(4, heads=1), torch.eye(4)
        >>> kernel = torch.arange(16.0).view(4, 4)
        >>> layer = start_from_kernel(layer, points, kernel)
        >>> torch.allclose(layer.query(points) @ layer.key(points).mT / 2, kernel, atol=1e-4)
        True
    """
    if not temperature > 0:
        raise BadInput(f"start_from_kernel: temperature is {temperature!r}, expected a number above 0")
    if points.dim() != 2 or points.shape[1] != layer.width:
        raise ShapeError(
            f"start_from_kernel: `points` has shape {tuple(points.shape)}, expected (v, {layer.width})"
        )
    factors = factor_within(points, kernel, rank=layer.width, groups=layer.heads, split=split)
    # Both sides share the layer's own scale and the temperature.
    root = (layer.width / layer.heads) ** 0.25 / temperature**0.5
    for side, weight in ((layer.query, factors.left), (layer.key, factors.right)):
        side.weight.copy_(weight.mT.flatten(0, 1) * root)
        side.bias.zero_()
    return layer


def _check_shares(who: str, kernel: Pattern) -> None:
    if isinstance(kernel, Factored):
        raise BadInput(f"{who}: normalise is 'row', which factors do not allow; expected 'softmax' or 'none'")
    low = float(kernel.entries.min())
    if low < 0:
        raise BadInput(
            f"{who}: normalise is 'row', but the kernel has negative entries down to {low:.3g}; expected "
            "such as ppmi, or 'softmax'"
        )
