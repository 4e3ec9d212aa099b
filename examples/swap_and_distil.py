"""Swap the attention of a trained model for a primal one, teach it what the old one did, and swap back.

python examples/swap_and_distil.py                  # a small Transformer that is trained here on drawn series
python examples/swap_and_distil.py --where all --rank 8 --save primal.safetensors

For a model of Hugging Face or timm: `open_host("path/to/folder")` in place of `trained`, or
`kernelhead graft` and `kernelhead distil` on the command line.
"""

import argparse
from pathlib import Path

import torch
from torch import Tensor, nn

from kernelhead.rng import seeded
from kernelhead.surgery import graft, restore, save
from kernelhead.training import Course, distil, fit_resident


class Classifier(nn.Module):
    """A plain Transformer of torch: two layers over points, read at the first of them."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True, norm_first=True)
        self.embed = nn.Linear(5, 32)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(32, 2)

    def forward(self, x: Tensor) -> Tensor:
        """Scores of two classes, (b, n, 5) to (b, 2)."""
        return self.head(self.encoder(self.embed(x))[:, 0])


def main() -> None:
    """Train, swap, distil, restore; the accuracy after each."""
    given = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    given.add_argument("--where", default="last", choices=["last", "all"], help="layers to swap")
    given.add_argument("--rank", type=int, default=4, help="of the primal attention")
    given.add_argument("--steps", type=int, default=100, help="of distillation")
    given.add_argument("--save", type=Path, help="safetensors file for the weights that were added")
    chosen = given.parse_args()

    (x, y), (new, answers) = draw(2048, seed=0), draw(1024, seed=1)
    model = trained(x, y)

    def right() -> float:
        with torch.no_grad():
            return 100 * (model(new).argmax(-1) == answers).float().mean().item()

    with torch.no_grad():
        before = model(new)
    print(f"softmax attention, as trained:          {right():5.1f} % right")
    graft(model, "primal", chosen.where, rank=chosen.rank, seed=0)
    print(f"primal attention, random weights:       {right():5.1f} %")
    report = graft(model, "primal", chosen.where, rank=chosen.rank, data=x[:256])
    paths = ", ".join(each.path for each in report.done)
    print(f"primal attention, fitted to softmax:    {right():5.1f} %   ({paths}, rank {chosen.rank})")
    course = Course(chosen.steps, 64, lr=1e-3)
    taught = distil(model, x, layers=course, whole=course)
    print(f"primal attention, distilled:            {right():5.1f} %   ({chosen.steps} steps, no labels)")
    first, _, last = taught.output
    print(f"distance of its outputs to softmax's:   {first:.3f} before distillation, {last:.3f} after")
    if chosen.save:
        save(model, chosen.save)
        print(f"added weights: {chosen.save}")
    restore(model)
    with torch.no_grad():
        print(f"restored: outputs are the old ones to the last bit: {torch.equal(model(new), before)}")


def draw(count: int, *, seed: int) -> tuple[Tensor, Tensor]:
    """Do points that are like the first one have high values? Places (3), value and a mark of the first."""
    with seeded(seed):
        x = torch.randn(count, 24, 5)
    x[:, 0, 3], x[..., 4] = 0, 0
    x[:, 0, 4] = 1
    likeness = x[:, :1, :3] @ x[..., :3].mT  # (b, 1, n)
    return x, ((likeness @ x[..., 3:4]).flatten() > 0).long()


def trained(x: Tensor, y: Tensor) -> nn.Module:
    """The model after a short training with labels."""
    with seeded(0):
        model = Classifier()
    fit_resident(model, x, y, Course(600, 64, lr=3e-3))
    return model.eval()


if __name__ == "__main__":
    main()
