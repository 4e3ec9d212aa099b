"""Five dialects of masks: each says what the canonical form says, and comes back as that."""

from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.attention.flex_attention import create_block_mask

from kernelhead.nn.hosts import Sides
from kernelhead.nn.hosts.masks import (
    Seen,
    Shape,
    from_flex,
    from_huggingface,
    from_sdpa,
    from_timm,
    from_torch,
)
from tests.inputs import keep

Read = Callable[[Tensor, Shape], Seen]


def added(kept: Tensor, low: float = -torch.inf) -> Tensor:
    return torch.zeros(kept.shape).masked_fill(~kept, low)


def torch_pairs(kept: Tensor, shape: Shape) -> Tensor:
    return kept.expand(shape).flatten(0, 1)


def flex(kept: Tensor, shape: Shape) -> Seen:
    every = kept.expand(shape)
    return from_flex(create_block_mask(lambda b, h, i, j: every[b, h, i, j], *shape, device="cpu"), shape)


# Each writes what is kept, (b, 1 or h, n, m), in its own words and reads it again.
DIALECTS: dict[str, Read] = {
    "torch, ignored": lambda kept, shape: from_torch(None, ~torch_pairs(kept, shape), shape),
    "torch, added": lambda kept, shape: from_torch(None, added(torch_pairs(kept, shape)), shape),
    "sdpa, kept": lambda kept, shape: from_sdpa(kept, False, shape),
    "sdpa, added": lambda kept, shape: from_sdpa(added(kept), False, shape),
    "timm": lambda kept, shape: from_timm(kept, False, shape, fused=True),
    "huggingface, kept": lambda kept, shape: from_huggingface(kept, True, shape),
    "huggingface, added": lambda kept, shape: from_huggingface(
        added(kept, torch.finfo(torch.float32).min), True, shape
    ),
    "flex": flex,
}


def written_out(seen: Seen, shape: Shape) -> Tensor:
    """Which keys a query sees, (b, h, n, m)."""
    b, h, n, m = shape
    query, key = torch.zeros(b, h, n, 1), torch.zeros(b, h, m, 1)
    return Sides(query, key, key, seen.mask, seen.causal, 1.0, seen.bias).pattern().matrix() > 0


@pytest.mark.parametrize("read", DIALECTS.values(), ids=DIALECTS)
@given(
    lengths=st.lists(st.integers(1, 5), min_size=1, max_size=3),
    more=st.integers(0, 2),
    causal=st.booleans(),
    left=st.booleans(),
)
def test_padding_and_causality_come_back(
    read: Read, lengths: list[int], more: int, causal: bool, left: bool
) -> None:
    n, m = 5 - more, 5
    real = keep(lengths, m)
    real = real.flip(-1) if left else real
    padded = real[:, None, None].expand(-1, 1, n, m)
    kept = padded & torch.ones(n, m).tril(m - n).bool() if causal else padded
    seen = read(kept, (len(lengths), 2, n, m))
    assert seen.bias is None
    assert torch.equal(written_out(seen, (len(lengths), 2, n, m)), kept.expand(-1, 2, n, m))
    # Where causality hides nothing more it cannot be told.
    assert seen.causal == causal or torch.equal(kept, padded)
    assert (seen.mask is None) == bool(real.all())


@pytest.mark.parametrize("read", DIALECTS.values(), ids=DIALECTS)
@given(
    b=st.integers(1, 2),
    h=st.integers(1, 2),
    n=st.integers(1, 4),
    m=st.integers(1, 4),
    seed=st.integers(0, 99),
)
def test_no_mask_is_lost(read: Read, b: int, h: int, n: int, m: int, seed: int) -> None:
    shape = (b, h, n, m)
    kept = torch.rand(shape, generator=torch.Generator().manual_seed(seed)) < 0.5
    assert torch.equal(written_out(read(kept, shape), shape), kept)


@given(
    lengths=st.lists(st.integers(1, 4), min_size=1, max_size=3), floats=st.booleans(), causal=st.booleans()
)
def test_both_masks_of_torch(lengths: list[int], floats: bool, causal: bool) -> None:
    shape, real = (len(lengths), 2, 4, 4), keep(lengths, 4)
    pairs = torch.ones(4, 4).tril().bool() if causal else torch.eye(4).bool()
    words = (added(real), added(pairs)) if floats else (~real, ~pairs)
    kept = (real[:, None] & pairs)[:, None].expand(shape)
    assert torch.equal(written_out(from_torch(*words, shape), shape), kept)


def test_finite_numbers_stay_a_bias() -> None:
    shape, real = (2, 1, 3, 3), keep([3, 2], 3)
    numbers = torch.arange(9.0).reshape(3, 3)
    seen = from_torch(~real, numbers, shape)
    assert torch.equal(seen.mask, real)
    assert torch.equal(seen.bias, numbers[None, None])
    both = from_torch(added(real) + 0.5, numbers, shape)
    assert torch.equal(both.mask, real)
    assert torch.equal(both.bias[0, 0], numbers + 0.5)
    strange = from_sdpa(numbers.masked_fill(torch.eye(3).bool(), -torch.inf), False, shape)
    assert strange.mask is None
    assert torch.equal(strange.bias.isinf()[0, 0], torch.eye(3).bool())


def test_causality_of_sdpa_starts_at_the_first_key() -> None:
    assert from_sdpa(None, True, (1, 1, 3, 3)) == Seen(causal=True)
    shape = (1, 1, 2, 4)
    assert torch.equal(written_out(from_sdpa(None, True, shape), shape)[0, 0], torch.ones(2, 4).tril().bool())
    shape, mask = (1, 1, 3, 3), torch.tensor([[True, True, False]]).expand(3, 3)
    kept = torch.ones(3, 3).tril().bool() & mask
    assert torch.equal(written_out(from_sdpa(mask, True, shape), shape)[0, 0], kept)


def test_causality_of_timm_wins_where_it_is_not_fused() -> None:
    shape, mask = (1, 1, 3, 3), torch.tensor([[True, True, False]]).expand(3, 3)
    assert from_timm(mask, True, shape, fused=False) == Seen(causal=True)
    assert from_timm(mask, True, shape, fused=True).mask is not None


def test_masks_of_keys_of_hugging_face() -> None:
    real = keep([5, 3], 5)
    seen = from_huggingface(real.long(), True, (2, 1, 5, 5))
    assert seen.causal
    assert torch.equal(seen.mask, real)
    assert from_huggingface(None, False, (1, 1, 3, 3)) == Seen()
    short = from_huggingface(real, False, (2, 1, 1, 8))
    assert torch.equal(short.mask, torch.nn.functional.pad(real, (0, 3)))
    long = from_huggingface(real[:, None, None], False, (2, 1, 1, 4))
    assert torch.equal(long.mask, real[:, :4])


@pytest.mark.parametrize("causal", [True, False])
def test_a_window_of_hugging_face(causal: bool) -> None:
    shape = (1, 1, 3, 6)
    kept = torch.ones(3, 6).triu(2).tril(4).bool()
    kept = kept & torch.ones(3, 6).tril(3).bool() if causal else kept
    assert torch.equal(written_out(from_huggingface(None, causal, shape, window=2), shape)[0, 0], kept)
    assert from_huggingface(None, causal, shape, window=6).bias is None
