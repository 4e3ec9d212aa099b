"""anchor_affinity: its definition, its law, its words."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kernelhead.errors import ShapeError, UnknownName
from kernelhead.kernels import anchor_affinity
from tests.inputs import points
from tests.oracles import kernels as oracle
from tests.oracles.reranking import affinity
from tests.tolerance import assert_exact


@given(n=st.integers(1, 6), anchors=st.integers(1, 6), seed=st.integers(0, 999))
def test_it_is_the_block_of_the_kernel(n: int, anchors: int, seed: int) -> None:
    x, z = points(n, 3, seed=seed), points(anchors, 3, seed=seed + 1)
    assert_exact(anchor_affinity(x, z), oracle.entries(oracle.cosine_kernel, x, z))
    assert_exact(anchor_affinity(x, z, kernel="identity"), oracle.entries(oracle.identity_kernel, x, z))


@given(n=st.integers(3, 7), seed=st.integers(0, 999))
def test_anchors_that_span_the_features_give_the_kernel_by_nystrom(n: int, seed: int) -> None:
    x = points(n, 3, seed=seed)
    block, core = anchor_affinity(x, x[:3]), anchor_affinity(x[:3], x[:3])
    whole = anchor_affinity(x, x)
    assert_exact(block @ torch.linalg.pinv(core, rtol=1e-12) @ block.mT, whole, bound=1e-7)


def test_lists_go_side_by_side() -> None:
    x = points(2, 5, 4)
    both = anchor_affinity(x, x[:, :3])
    assert_exact(both[1], affinity(x[1], 3))


def test_what_is_refused() -> None:
    with pytest.raises(ShapeError, match=r"anchor_affinity: axis `d` is 4 in `points` but 3 in `anchors`"):
        anchor_affinity(points(2, 4), points(2, 3))
    with pytest.raises(UnknownName, match="unknown feature map 'cosin', did you mean 'cosine'"):
        anchor_affinity(points(2, 4), points(2, 4), kernel="cosin")
