"""Embeddings of tokens whose gradient costs little on a GPU."""

from torch import Tensor, nn

from kernelhead.ops.lookup import look_up


class Embedding(nn.Embedding):
    """`torch.nn.Embedding`; on a GPU the gradient of a small one costs no more where tokens are the same.

    Example:
        >>> import torch
        >>> Embedding(5, 3)(torch.tensor([[0, 4]])).shape
        torch.Size([1, 2, 3])
    """

    def forward(self, input: Tensor) -> Tensor:
        """The vector of every token."""
        plain = self.padding_idx is None and self.max_norm is None
        plain = plain and not (self.scale_grad_by_freq or self.sparse)
        return look_up(self.weight, input) if plain else super().forward(input)
