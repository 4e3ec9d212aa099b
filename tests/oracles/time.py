"""Kernels of time entry by entry, and the encodings of the released code component by component; spec A1."""

import math

import torch
from torch import Tensor


def bochner_entry(lag: float, frequencies: list[float], weights: list[float]) -> float:
    """psi(tau) = sum_i w_i cos(omega_i tau)."""
    total = 0.0
    for frequency, weight in zip(frequencies, weights, strict=True):
        total += weight * math.cos(frequency * lag)
    return total


def mercer_entry(lag: float, periods: list[float], coefficients: list[list[float]]) -> float:
    """psi(tau) = sum_p sum_j c_pj cos(2 pi j tau / T_p), j from 0."""
    total = 0.0
    for period, row in zip(periods, coefficients, strict=True):
        for j, coefficient in enumerate(row):
            total += coefficient * math.cos(2 * math.pi * j * lag / period)
    return total


def released_bochner(times: Tensor, sine: Tensor, cosine: Tensor, scale: Tensor) -> Tensor:
    """beta * [sin(t 10^-a), cos(t 10^-b)], all sines first: (n,) to (n, 2d)."""
    rows = []
    for t in times.double().tolist():
        row = [math.sin(t * 10**-a) for a in sine.double().tolist()]
        row += [math.cos(t * 10**-b) for b in cosine.double().tolist()]
        rows.append([beta * entry for beta, entry in zip(scale.double().tolist(), row, strict=True)])
    return torch.tensor(rows, dtype=torch.float64)


def released_mercer(times: Tensor, exponents: Tensor, weights: Tensor, bias: Tensor) -> Tensor:
    """sum_j A_pj sin(j t / 10^q_p) + B_pj cos(j t / 10^q_p) + bias_p, weights [A B]: (n,) to (n, k)."""
    harmonics = weights.shape[1] // 2
    rows = []
    for t in times.double().tolist():
        row = []
        for p, q in enumerate(exponents.double().tolist()):
            total = float(bias[p])
            for j in range(1, harmonics + 1):
                total += float(weights[p, j - 1]) * math.sin(j * t / 10**q)
                total += float(weights[p, harmonics + j - 1]) * math.cos(j * t / 10**q)
            row.append(total)
        rows.append(row)
    return torch.tensor(rows, dtype=torch.float64)


def mixed_logits(
    query: Tensor, key: Tensor, left: Tensor, right: Tensor, strength: float, mix: str
) -> Tensor:
    """q'k / sqrt(d) plus, or times, strength times the inner product of encodings, to (n, m)."""
    made = torch.zeros(len(query), len(key), dtype=torch.float64)
    for i in range(len(query)):
        for j in range(len(key)):
            event = sum(a * b for a, b in zip(query[i].tolist(), key[j].tolist(), strict=True))
            event /= math.sqrt(query.shape[1])
            time = strength * sum(a * b for a, b in zip(left[i].tolist(), right[j].tolist(), strict=True))
            made[i, j] = event + time if mix == "add" else event * time
    return made
