"""The loops of a table model, against torch's own parts."""

import pytest
from torch.nn import functional as F

from tests.inputs import points
from tests.oracles import datapoints as oracle
from tests.tolerance import assert_exact

WIDTH = 4


def weights(*shapes: tuple[str, int, int]) -> oracle.Weights:
    made = {}
    for seed, (name, out, into) in enumerate(shapes):
        made[f"{name}.weight"] = points(out, into, seed=seed) if into else points(out, seed=seed)
        made[f"{name}.bias"] = points(out, seed=seed + 50)
    return made


@pytest.mark.parametrize("norm", ["query", "all"])
def test_attention_is_that_of_torch(norm: str) -> None:
    names = ("query", "key", "value", "out")
    held, x = weights(*((name, WIDTH, WIDTH) for name in names), ("norm.norm", WIDTH, 0)), points(5, WIDTH)
    normed = F.layer_norm(x, [WIDTH], held["norm.norm.weight"], held["norm.norm.bias"], 1e-3)
    sides = (normed, *([normed] * 2 if norm == "all" else [x] * 2))
    query, key, value = (
        F.linear(side, held[f"{name}.weight"], held[f"{name}.bias"]).unflatten(-1, (2, 2)).transpose(0, 1)
        for name, side in zip(names, sides, strict=False)
    )
    mixed = F.scaled_dot_product_attention(query, key, value, scale=WIDTH**-0.5)
    wanted = F.linear(mixed.transpose(0, 1).flatten(1), held["out.weight"], held["out.bias"])
    assert_exact(oracle.attention(x, held, 2, norm, 1e-3), wanted)


def test_a_point_with_no_real_key_has_its_own_value() -> None:
    own = points(3, 2, seed=3)
    made = oracle.own_attention(
        points(3, 4), points(5, 4), points(5, 2), points(3, 4, seed=1), own, [False] * 5, 1.0
    )
    assert_exact(made, own)


def test_a_block_of_zero_weights_is_its_biases() -> None:
    shapes = [(f"attention.attention.{name}", WIDTH, WIDTH) for name in ("query", "key", "value", "out")]
    shapes += [("residual", WIDTH, WIDTH), ("feed_forward.0", 8, WIDTH), ("feed_forward.3", WIDTH, 8)]
    shapes += [("attention.attention.norm.norm", WIDTH, 0), ("norm", WIDTH, 0)]
    held = {name: each if name.endswith("bias") else 0 * each for name, each in weights(*shapes).items()}
    wanted = held["residual.bias"] + held["attention.attention.out.bias"] + held["feed_forward.3.bias"]
    assert_exact(oracle.block(points(3, WIDTH), held, 2, "query", 1e-12), wanted.expand(3, WIDTH))
