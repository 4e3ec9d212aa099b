"""Decision transformer: returns, observations and actions in, the next actions out."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from kernelhead.errors import BadInput
from kernelhead.models.blocks import Block
from kernelhead.models.registry import Sizes, build_attention, layer_names
from kernelhead.nn import Dropout, evaluating
from kernelhead.shapes import check_axes, check_mask, check_size

TOKENS = 3  # of a step: return to go, observation, action


class DecisionTransformer(nn.Module):
    """Causal blocks over steps of three tokens; each observation predicts the action that follows it.

    The tokens of a step are its return to go, its observation and its action; a learned vector for the
    time step is added to all three. Which actions the model sees before it predicts one are those of
    earlier steps.

    Shapes: returns (b, k), observations (b, k, o), actions (b, k, a), timesteps (b, k) whole numbers, mask
    (b, k), True where a step is real; returns actions (b, k, a), which say nothing at padded steps.

    Args:
        observations: entries of an observation, o.
        actions: entries of an action, a.
        width: of the model.
        depth: number of layers.
        heads: of each attention.
        attention: of all layers, of the last ("primal+") or of each; see `layer_names`.
        rank: of primal layers.
        landmarks: of primal layers; None for weights that do not depend on the data.
        iterations: attentions of a pursuit, in RPC layers.
        strength: lambda of RPC layers; the preset's own if None.
        inner: middle width of the feed-forward, four times the width by default.
        context: most steps that `act` looks back on, k.
        longest: time steps of an episode.
        dropout: of embeddings and blocks.
        bounded: whether actions are kept in [-1, 1] by a hyperbolic tangent.
        init: of primal weights, "orthonormal" or "published".

    Raises:
        BadInput: a size is out of range, or an attention has no causal form.
        UnknownName: no such attention or init.

    Example:
        >>> model = DecisionTransformer(4, 2, width=16, depth=2, heads=2, attention="primal+", rank=4)
        >>> times = torch.arange(5).expand(3, 5)
        >>> steps = torch.zeros(3, 5), torch.zeros(3, 5, 4), torch.zeros(3, 5, 2), times
        >>> model(*steps).shape, model.act(*steps).shape
        (torch.Size([3, 5, 2]), torch.Size([3, 2]))
    """

    mean: Tensor
    spread: Tensor

    def __init__(
        self,
        observations: int,
        actions: int,
        *,
        width: int = 128,
        depth: int = 3,
        heads: int = 4,
        attention: str | Sequence[str] = "primal+",
        rank: int = 16,
        landmarks: int | None = None,
        iterations: int = 4,
        strength: float | None = None,
        inner: int | None = None,
        context: int = 20,
        longest: int = 1000,
        dropout: float = 0.1,
        bounded: bool = True,
        init: str = "orthonormal",
    ) -> None:
        super().__init__()
        who = "DecisionTransformer"
        given = {"observations": observations, "actions": actions, "width": width, "depth": depth}
        for name, number in (given | {"context": context, "longest": longest}).items():
            check_size(who, name, number)
        self.context, self.longest, self.bounded = context, longest, bounded
        self.register_buffer("mean", torch.zeros(observations))
        self.register_buffer("spread", torch.ones(observations))
        self.of_return, self.of_observation = nn.Linear(1, width), nn.Linear(observations, width)
        self.of_action, self.of_timestep = nn.Linear(actions, width), nn.Embedding(longest, width)
        nn.init.normal_(self.of_timestep.weight, std=0.02)
        self.first_norm, self.final_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.dropout = Dropout(dropout)
        sizes = Sizes(
            width, heads, rank, landmarks, causal=True, init=init, iterations=iterations, strength=strength
        )
        self.blocks = nn.ModuleList(
            Block(
                build_attention(name, sizes, who="DecisionTransformer"),
                inner=inner or 4 * width,
                dropout=dropout,
            )
            for name in layer_names(attention, depth)
        )
        self.head = nn.Linear(width, actions)

    def standardise(self, mean: Tensor, spread: Tensor) -> None:
        """Take observations from now on less this mean and over this spread; both are saved with the weights.

        Shapes: mean (o,), spread (o,).

        Raises:
            BadInput: a spread is not above 0.
            ShapeError: either does not fit the observations.
        """
        who = "DecisionTransformer.standardise"
        check_axes(who, observations=(self.mean, "o"), mean=(mean, "o"), spread=(spread, "o"))
        if not bool((spread > 0).all()):
            raise BadInput(f"{who}: the smallest spread is {float(spread.min())}, expected above 0")
        self.mean.copy_(mean)
        self.spread.copy_(spread)

    def forward(
        self,
        returns: Tensor,
        observations: Tensor,
        actions: Tensor,
        timesteps: Tensor,
        mask: Tensor | None = None,
    ) -> Tensor:
        """The action of every step."""
        sizes = check_axes(
            "DecisionTransformer",
            observations=(observations, "b k o"),
            actions=(actions, "b k a"),
            returns=(returns, "b k"),
            timesteps=(timesteps, "b k"),
            mean=(self.mean, "o"),
            bias=(self.head.bias, "a"),
        )
        check_mask("DecisionTransformer", mask, observations)
        if sizes["k"] == 0 or timesteps.is_floating_point():
            raise BadInput(
                f"DecisionTransformer: {sizes['k']} steps and `timesteps` in {timesteps.dtype}, "
                "expected a step or more and whole numbers"
            )
        if mask is not None:
            padding = ~mask
            returns, timesteps = returns.masked_fill(padding, 0), timesteps.masked_fill(padding, 0)
            observations = observations.masked_fill(padding.unsqueeze(-1), 0)
            actions = actions.masked_fill(padding.unsqueeze(-1), 0)
            mask = mask.unsqueeze(-1).expand(-1, -1, TOKENS).flatten(1)  # (b, 3k)
        step = torch.stack(
            [
                self.of_return(returns.unsqueeze(-1)),
                self.of_observation((observations - self.mean) / self.spread),
                self.of_action(actions),
            ],
            dim=2,
        )  # (b, k, 3, c)
        x = (step + self.of_timestep(timesteps).unsqueeze(2)).flatten(1, 2)
        x = self.dropout(self.first_norm(x))
        for block in self.blocks:
            x = block(x, mask=mask)
        seen = self.final_norm(x[:, 1::TOKENS])  # what stands at the observations
        made: Tensor = self.head(seen)
        return made.tanh() if self.bounded else made

    @torch.no_grad()
    def act(self, returns: Tensor, observations: Tensor, actions: Tensor, timesteps: Tensor) -> Tensor:
        """The action of the last step, in evaluation mode, from the last `context` steps at most.

        Shapes: as in `forward`, with an action of any value at the last step; returns (b, a).

        Raises:
            BadInput: a time step is out of range.
            ShapeError: the steps do not fit each other or the model.
        """
        first, last = (int(edge) for edge in timesteps.aminmax()) if timesteps.numel() else (0, 0)
        if first < 0 or last >= self.longest:
            raise BadInput(
                f"DecisionTransformer.act: time steps run from {first} to {last}, "
                f"but were learned from 0 to {self.longest - 1}"
            )
        history = (held[:, -self.context :] for held in (returns, observations, actions, timesteps))
        with evaluating(self):
            made: Tensor = self(*history)[:, -1]
        return made


def action_loss(model: nn.Module, steps: tuple[Tensor, ...], actions: Tensor) -> Tensor:
    """Mean squared error of the actions of real steps, as `fit_resident` takes it.

    Shapes: steps as `DecisionTransformer` takes them, with their mask (b, k); actions (b, k, a), the targets.

    Example:
        >>> model = DecisionTransformer(4, 2, width=16, depth=1, heads=2, attention="softmax")
        >>> times, nothing = torch.arange(5).expand(3, 5), torch.zeros(3, 5, dtype=torch.bool)
        >>> steps = torch.zeros(3, 5), torch.zeros(3, 5, 4), torch.zeros(3, 5, 2), times, nothing
        >>> action_loss(model, steps, torch.ones(3, 5, 2)).item()
        0.0
    """
    *_, mask = steps
    missed = (model(*steps) - actions).masked_fill(~mask.unsqueeze(-1), 0).square().mean(-1)
    return missed.sum() / mask.sum().clamp_min(1)
