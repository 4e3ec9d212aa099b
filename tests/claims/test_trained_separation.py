"""The claim that training raises the separation rank of a real network (after arXiv 2006.12467)."""

import asyncio
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from kernelhead.data import read_corpus
from kernelhead.inspection import separation_spectrum
from kernelhead.models import LanguageModel
from kernelhead.rng import seeded
from kernelhead.training import Course, fit_resident

VERDICTS = {"short training raises the separation rank of a language model of bytes": "does not hold"}
WINDOW, HALVES = 32, 48
pytestmark = pytest.mark.slow


def windows(text: Tensor, count: int, seed: int) -> Tensor:
    """Stretches of bytes at random places, (count, window)."""
    with seeded(seed):
        starts = torch.randint(len(text) - WINDOW, (count, 1))
    return text[starts + torch.arange(WINDOW)].long()


def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(model(x[:, :-1]).flatten(0, 1), x[:, 1:].flatten())


def test_short_training_lowers_it() -> None:
    text = torch.from_numpy(read_corpus(Path(asyncio.__file__).parent).copy())
    with seeded(0):
        model, fresh = (LanguageModel(256, width=48, depth=2, heads=2) for _ in range(2))
        fresh.load_state_dict(model.state_dict())
    x = windows(text[: len(text) * 9 // 10], 200 * 32, seed=0)
    fit_resident(model, x, torch.zeros(len(x)), Course(200, 32, lr=3e-3), loss=loss)
    held = windows(text[len(text) * 9 // 10 :], 2 * HALVES, seed=1)
    left, right = held[:HALVES, : WINDOW // 2], held[HALVES:, WINDOW // 2 :]
    read = separation_spectrum(model.eval(), left, right, untrained=fresh.eval())
    trained, untrained = read.found.effective_rank, read.nulls["untrained"].effective_rank
    assert trained < 0.7 * untrained
