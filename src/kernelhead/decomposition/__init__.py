"""Factor: singular, spectral, low rank plus sparse."""

from kernelhead.decomposition.kpca import (
    KernelPCA,
    Reconstruction,
    centred_gram,
    kpca,
    kpca_values,
    log_norms,
)
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
from kernelhead.decomposition.rpca import RobustPCA, rpca

__all__ = [
    "KSVD",
    "KernelPCA",
    "Reconstruction",
    "RobustPCA",
    "centred_gram",
    "kpca",
    "kpca_values",
    "ksvd",
    "ksvd_dense",
    "ksvd_products",
    "ksvd_softmax",
    "log_norms",
    "objective",
    "orthonormal_columns",
    "paired_signs",
    "primal_weights",
    "rpca",
    "tall_qr",
    "unit_frobenius",
]
