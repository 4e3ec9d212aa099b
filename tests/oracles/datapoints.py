"""Attention between the rows and the columns of a table, as loops (arXiv 2106.02584 and its released code).

Of a set of tokens H of width c: Q = LN(H) W_q, keys and values of H itself or of LN(H), scores over the
square root of c, heads of neighbouring channels, R = H W_res + heads W_o, output R + W_2 gelu(W_1 LN(R)).
"""

from math import erf, exp, sqrt

import torch
from torch import Tensor

Weights = dict[str, Tensor]


def linear(x: Tensor, weights: Weights, name: str) -> Tensor:
    weight, bias = weights[f"{name}.weight"], weights[f"{name}.bias"]
    made = bias.clone()
    for out in range(len(bias)):
        for place in range(len(x)):
            made[out] += weight[out, place] * x[place]
    return made


def layer_norm(x: Tensor, weights: Weights, name: str, epsilon: float) -> Tensor:
    mean = sum(float(each) for each in x) / len(x)
    variance = sum((float(each) - mean) ** 2 for each in x) / len(x)
    return (x - mean) / sqrt(variance + epsilon) * weights[f"{name}.weight"] + weights[f"{name}.bias"]


def softmax(scores: list[float]) -> list[float]:
    largest = max(scores)
    parts = [exp(score - largest) for score in scores]
    return [part / sum(parts) for part in parts]


def attention(tokens: Tensor, weights: Weights, heads: int, norm: str, epsilon: float) -> Tensor:
    """Tokens (n, c) to W_o of all heads, (n, c)."""
    count, width = tokens.shape
    normed = [layer_norm(token, weights, "norm.norm", epsilon) for token in tokens]
    source = normed if norm == "all" else list(tokens)
    query = [linear(token, weights, "query") for token in normed]
    key = [linear(token, weights, "key") for token in source]
    value = [linear(token, weights, "value") for token in source]
    output = torch.zeros_like(tokens)
    for i in range(count):
        mixed = torch.zeros(width, dtype=tokens.dtype)
        for head in range(heads):
            part = slice(head * width // heads, (head + 1) * width // heads)
            shares = softmax([float(query[i][part] @ key[j][part]) / sqrt(width) for j in range(count)])
            for j in range(count):
                mixed[part] += shares[j] * value[j][part]
        output[i] = linear(mixed, weights, "out")
    return output


def block(tokens: Tensor, weights: Weights, heads: int, norm: str, epsilon: float) -> Tensor:
    """Tokens (n, c) through a whole block."""
    inner = under(weights, "attention.attention")
    attended = attention(tokens, inner, heads, norm, epsilon)
    output = torch.zeros_like(tokens)
    for i, token in enumerate(tokens):
        residual = linear(token, weights, "residual") + attended[i]
        hidden = linear(layer_norm(residual, weights, "norm", epsilon), weights, "feed_forward.0")
        hidden = torch.tensor(
            [float(h) * (1 + erf(float(h) / sqrt(2))) / 2 for h in hidden], dtype=token.dtype
        )
        output[i] = residual + linear(hidden, weights, "feed_forward.3")
    return output


def table_model(
    values: Tensor,
    missing: Tensor,
    weights: Weights,
    *,
    widths: list[int],
    categorical: list[bool],
    depth: int,
    heads: int,
    norm: str,
    epsilon: float,
) -> list[Tensor]:
    """One table, values (r, sum of widths) and missing (r, a), to one (r, width) a column."""
    rows, columns = missing.shape
    size = weights["column"].shape[1]
    table = torch.zeros(rows, columns, size, dtype=values.dtype)
    for row in range(rows):
        start = 0
        for column, width in enumerate(widths):
            entry = torch.zeros(width + 1, dtype=values.dtype)
            entry[:width] = 0 if missing[row, column] else values[row, start : start + width]
            entry[width] = float(missing[row, column])
            table[row, column] = linear(entry, weights, f"embed.{column}") + weights["column"][column]
            if "kind" in weights:
                table[row, column] += weights["kind"][int(categorical[column])]
            start += width
    for number in range(depth):
        inner = under(weights, f"blocks.{number}")
        if number % 2 == 0:
            flat = block(table.reshape(rows, columns * size), inner, heads, norm, epsilon)
            table = flat.reshape(rows, columns, size)
        else:
            table = torch.stack([block(row, inner, heads, norm, epsilon) for row in table])
    return [
        torch.stack([linear(table[row, column], weights, f"unembed.{column}") for row in range(rows)])
        for column in range(columns)
    ]


def own_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    own_key: Tensor,
    own_value: Tensor,
    real: list[bool],
    scale: float,
) -> Tensor:
    """Each of n points attends to the real ones of m keys and to its own key."""
    output = torch.zeros_like(own_value)
    seen = [j for j, each in enumerate(real) if each]
    for i in range(len(query)):
        scores = [scale * float(query[i] @ key[j]) for j in seen] + [scale * float(query[i] @ own_key[i])]
        shares = softmax(scores)
        for share, j in zip(shares[:-1], seen, strict=True):
            output[i] += share * value[j]
        output[i] += shares[-1] * own_value[i]
    return output


def under(weights: Weights, path: str) -> Weights:
    """The weights of one part, without its path."""
    start = f"{path}."
    return {name.removeprefix(start): each for name, each in weights.items() if name.startswith(start)}
