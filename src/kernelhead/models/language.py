"""Causal language model: tokens in, scores of the next token out, all at once or one by one."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf, sqrt
from typing import Any

import torch
from torch import Tensor, nn

from kernelhead.errors import BadInput
from kernelhead.models.blocks import Block, Positions
from kernelhead.models.registry import Sizes, build_attention, layer_names
from kernelhead.nn import Dropout, evaluating
from kernelhead.rng import generator
from kernelhead.shapes import check_mask, check_size


@dataclass(frozen=True, eq=False)
class Decoding:
    """Where a language model stands in a batch of texts: the state of each layer, and the place.

    States of primal and linear layers keep their size; those of softmax layers grow.
    """

    layers: tuple[Any, ...]
    place: int
    batch: int


class LanguageModel(nn.Module):
    """Causal blocks over tokens; each place scores the token that follows it.

    Shapes: tokens (b, n) whole numbers; mask (b, n), True where real; returns (b, n, vocabulary), which
    says nothing at padded places.

    Args:
        vocabulary: number of tokens v.
        width: of the model.
        depth: number of layers.
        heads: of each attention.
        attention: of all layers, of the last ("primal+") or of each; see `layer_names`.
        rank: of primal layers.
        landmarks: of primal layers.
        iterations: attentions of a pursuit, in RPC layers.
        strength: lambda of RPC layers; the preset's own if None.
        inner: middle width of the feed-forward, four times the width by default.
        dropout: of positions and blocks.
        longest: most tokens, where positions are learned.
        position: "learned"; or "sinusoidal", with embeddings times the root of the width; or "none".
        tied: whether embeddings also score, one tensor for both.
        init: of primal weights, "orthonormal" or "published".

    Raises:
        BadInput: a size is out of range, or an attention has no causal form.
        UnknownName: no such attention, position or init.

    Example:
        >>> model = LanguageModel(50, width=16, depth=2, heads=2, attention="primal", rank=4)
        >>> model(torch.zeros(3, 7, dtype=torch.int64)).shape
        torch.Size([3, 7, 50])
        >>> model.generate(torch.zeros(3, 2, dtype=torch.int64), 4, seed=0).shape
        torch.Size([3, 4])
    """

    def __init__(
        self,
        vocabulary: int,
        *,
        width: int = 256,
        depth: int = 4,
        heads: int = 4,
        attention: str | Sequence[str] = "softmax",
        rank: int = 16,
        landmarks: int = 32,
        iterations: int = 4,
        strength: float | None = None,
        inner: int | None = None,
        dropout: float = 0.0,
        longest: int = 512,
        position: str = "learned",
        tied: bool = True,
        init: str = "orthonormal",
    ) -> None:
        super().__init__()
        who = "LanguageModel"
        for name, number in {
            "vocabulary": vocabulary,
            "width": width,
            "depth": depth,
            "longest": longest,
        }.items():
            check_size(who, name, number)
        sizes = Sizes(
            width, heads, rank, landmarks, causal=True, init=init, iterations=iterations, strength=strength
        )
        self.embedding = nn.Embedding(vocabulary, width)
        nn.init.normal_(self.embedding.weight, std=0.02)
        self.scale = sqrt(width) if position == "sinusoidal" else 1.0
        self.positions = Positions(width, kind=position, longest=longest)
        self.blocks = nn.ModuleList(
            Block(
                build_attention(name, sizes, who="LanguageModel"), inner=inner or 4 * width, dropout=dropout
            )
            for name in layer_names(attention, depth)
        )
        self.final_norm, self.dropout = nn.LayerNorm(width), Dropout(dropout)
        self.head = None if tied else nn.Linear(width, vocabulary, bias=False)

    def forward(self, tokens: Tensor, mask: Tensor | None = None) -> Tensor:
        """Scores of the next token at every place."""
        if tokens.dim() != 2 or tokens.is_floating_point() or tokens.shape[1] == 0:
            raise BadInput(
                f"LanguageModel: `tokens` is {tokens.dtype} of shape {tuple(tokens.shape)}, "
                "expected whole numbers (b, n), n of 1 or more"
            )
        check_mask("LanguageModel", mask, tokens.unsqueeze(-1))
        x = self._embedded(tokens if mask is None else tokens.masked_fill(~mask, 0), 0)
        for block in self.blocks:
            x = block(x, mask=mask)
        return self._scored(x)

    def start(self, batch: int) -> Decoding:
        """Where `batch` texts stand before their first token.

        Raises:
            BadInput: a layer cannot be run one point at a time.
        """
        check_size("LanguageModel", "batch", batch)
        layers: list[Any] = [block.attention for block in self.blocks]
        for place, layer in enumerate(layers):
            if not hasattr(layer, "step"):
                raise BadInput(
                    f"LanguageModel: layer {place}, {type(layer).__name__}, has no form that takes one "
                    "point at a time"
                )
        return Decoding(tuple(layer.start(batch) for layer in layers), 0, batch)

    def step(self, tokens: Tensor, state: Decoding) -> tuple[Tensor, Decoding]:
        """Scores after one more token of each text; equal to the parallel form.

        Shapes: tokens (b,); returns (b, vocabulary) and where the texts then stand.

        Raises:
            BadInput: `tokens` does not fit the state, or learned positions end.

        Example:
            >>> model = LanguageModel(50, width=16, depth=2, heads=2, attention="linear")
            >>> scores, state = model.step(torch.tensor([3, 4]), model.start(2))
            >>> scores.shape, state.place
            (torch.Size([2, 50]), 1)
        """
        if tokens.shape != (state.batch,) or tokens.is_floating_point():
            raise BadInput(
                f"LanguageModel.step: `tokens` is {tokens.dtype} of shape {tuple(tokens.shape)}, "
                f"expected whole numbers ({state.batch},)"
            )
        x, after = self._embedded(tokens[:, None], state.place)[:, 0], []
        for block, held in zip(self.blocks, state.layers, strict=True):
            x, grown = _through(block, x, held)
            after.append(grown)
        return self._scored(x), Decoding(tuple(after), state.place + 1, state.batch)

    @torch.no_grad()
    def generate(self, prompt: Tensor, count: int, *, temperature: float = 1.0, seed: int = 0) -> Tensor:
        """Tokens that follow a prompt, drawn one by one in evaluation mode.

        The global generator is left alone.

        Shapes: prompt (b, n); returns (b, count), without the prompt.

        Args:
            temperature: scores are divided by it; 0 takes the token of the highest score.
            seed: names the draw.

        Raises:
            BadInput: the prompt is empty, a number is out of range, or a layer takes no single points.
        """
        who = "LanguageModel.generate"
        check_size(who, "count", count, least=0)
        if prompt.dim() != 2 or prompt.shape[1] == 0:
            raise BadInput(
                f"{who}: `prompt` has shape {tuple(prompt.shape)}, expected (b, n), n of 1 or more"
            )
        if not 0 <= temperature < inf:
            raise BadInput(f"{who}: temperature is {temperature!r}, expected a finite number of at least 0")
        draws, drawn = generator(check_size(who, "seed", seed, least=0)), [prompt]
        with evaluating(self):
            state = self.start(prompt.shape[0])
            for token in prompt.unbind(1):
                scores, state = self.step(token, state)
            for left in reversed(range(count)):
                token = _drawn(scores, temperature, draws)
                drawn.append(token[:, None].to(prompt.dtype))
                if left:
                    scores, state = self.step(token, state)
        return torch.cat(drawn, dim=1)[:, prompt.shape[1] :]

    def _embedded(self, tokens: Tensor, first: int) -> Tensor:
        return self.dropout(self.positions(self.embedding(tokens) * self.scale, first=first))

    def _scored(self, x: Tensor) -> Tensor:
        weight = self.embedding.weight if self.head is None else self.head.weight
        return nn.functional.linear(self.final_norm(x), weight)


def _through(block: Any, x: Tensor, state: Any) -> tuple[Tensor, Any]:
    """One more point (b, c) through one block, and the state of its attention after it."""

    def attend(point: Tensor) -> Tensor:
        nonlocal state
        output, state = block.attention.step(point, state)
        return output

    x = block.around(attend, x)
    return x, state


def _drawn(scores: Tensor, temperature: float, draws: torch.Generator) -> Tensor:
    if temperature == 0:
        return scores.argmax(-1)
    scores = scores.double()
    # The highest score is taken out first: a small temperature then overflows nowhere.
    chances = ((scores - scores.amax(-1, keepdim=True)) / temperature).softmax(-1)
    return torch.multinomial(chances.cpu(), 1, generator=draws)[:, 0].to(scores.device)
