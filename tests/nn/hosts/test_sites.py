"""find_sites: ours, wrappers, names that only look like attention, and models that have none."""

import pytest
import torch
from torch import Tensor, nn

from kernelhead.nn import PrimalAttention, SoftmaxAttention
from kernelhead.nn.base import AbstractRecorded, Attended
from kernelhead.nn.hosts import LOOKED_FOR, core_of_graft, find_sites


class WindowAttention(nn.Module):
    """Looks like timm's, is nobody's."""

    def __init__(self) -> None:
        super().__init__()
        self.num_heads, self.window_size = 2, (7, 7)
        self.qkv, self.proj = nn.Linear(8, 24), nn.Linear(8, 8)


class Attention(nn.Module):
    """A name that says nothing: twelve files of timm have a class of this name."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.q_norm, self.k_norm, self.proj = (
            nn.Linear(8, 24),
            nn.Identity(),
            nn.Identity(),
            nn.Linear(8, 8),
        )
        self.num_heads, self.head_dim = 2, 4


class BiasedAttention(Attention):
    def __init__(self) -> None:
        super().__init__()
        self.relative_position_bias_table = nn.Parameter(torch.zeros(3))


class TurningAttention(Attention):
    def forward(self, x: Tensor, rope: Tensor | None = None) -> Tensor:
        return x


class Core(AbstractRecorded):
    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        self._note(Attended(query))
        return query


def test_a_model_without_attention() -> None:
    assert find_sites(nn.Sequential(nn.Linear(2, 2), nn.ReLU())) == []
    assert "nn.MultiheadAttention" in LOOKED_FOR


def test_ours_are_found_with_a_reason() -> None:
    model = nn.Sequential(SoftmaxAttention(8, heads=2, causal=True), PrimalAttention(8, heads=2, rank=3))
    softmax, primal = find_sites(model)
    assert (softmax.path, softmax.family, softmax.kind) == ("0", "kernelhead", "SoftmaxAttention")
    assert (softmax.width, softmax.heads, softmax.head, softmax.causal) == (8, 2, 4, True)
    assert softmax.reason == "is an attention of kernelhead already"
    assert (softmax.readable, primal.readable, primal.causal) == (True, False, False)


@pytest.mark.parametrize(
    ("module", "reason"),
    [
        (WindowAttention(), "attends inside windows"),
        (BiasedAttention(), "adds a relative position bias to its logits"),
        (TurningAttention(), "turns queries and keys inside its forward (rotary positions)"),
        (Attention(), "is of no family that is known"),
    ],
    ids=lambda each: type(each).__name__ if isinstance(each, nn.Module) else "",
)
def test_what_only_looks_like_attention_is_named(module: nn.Module, reason: str) -> None:
    (site,) = find_sites(nn.ModuleDict({"inner": module}))
    assert (site.path, site.family, site.kind) == ("inner", "other", type(module).__name__)
    assert (site.width, site.heads, site.head) == (8, 2, 4)
    assert (site.reason, site.readable) == (reason, False)


def test_what_holds_an_attention_is_none() -> None:
    class AttentionBlock(nn.Module):
        def __init__(self, inner: nn.Module) -> None:
            super().__init__()
            self.norm, self.inner = nn.LayerNorm(8), inner

    for inner in (nn.MultiheadAttention(8, 2), Attention()):
        assert [site.path for site in find_sites(AttentionBlock(inner))] == ["inner"]
    assert [site.path for site in find_sites(AttentionBlock(nn.ReLU()))] == [""]


def test_sites_are_in_the_order_of_the_model() -> None:
    model = nn.ModuleList(
        [Attention(), nn.MultiheadAttention(8, 2), WindowAttention(), SoftmaxAttention(8, heads=2)]
    )
    assert [site.path for site in find_sites(model)] == ["0", "1", "2", "3"]


def test_a_module_in_two_places_is_one_site() -> None:
    shared = nn.MultiheadAttention(8, 2)
    assert [site.path for site in find_sites(nn.ModuleList([shared, shared]))] == ["0"]


def test_a_core_belongs_to_its_host() -> None:
    host = nn.MultiheadAttention(8, 2)
    host.add_module("kernelhead", Core())
    (site,) = find_sites(nn.ModuleDict({"attention": host}))
    assert (site.path, site.reason) == ("attention", None)
    assert core_of_graft(host) is host.kernelhead
