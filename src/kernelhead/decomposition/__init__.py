"""Factor: singular, spectral, low rank plus sparse."""

from kernelhead.decomposition.ksvd import (
    ksvd,
    ksvd_dense,
    ksvd_products,
    ksvd_softmax,
    objective,
    primal_weights,
)
from kernelhead.decomposition.linalg import orthonormal_columns, paired_signs, tall_qr, unit_frobenius
from kernelhead.decomposition.results import KSVD

__all__ = [
    "KSVD",
    "ksvd",
    "ksvd_dense",
    "ksvd_products",
    "ksvd_softmax",
    "objective",
    "orthonormal_columns",
    "paired_signs",
    "primal_weights",
    "tall_qr",
    "unit_frobenius",
]
