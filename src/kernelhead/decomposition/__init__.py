"""Factor: singular, spectral, low rank plus sparse."""

from kernelhead.decomposition.cooccurrence import PairFactors, factor_pairs, factor_within, ksvd_sparse
from kernelhead.decomposition.fields import field_product, field_rank, to_field
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
    "PairFactors",
    "Reconstruction",
    "RobustPCA",
    "centred_gram",
    "factor_pairs",
    "factor_within",
    "field_product",
    "field_rank",
    "kpca",
    "kpca_values",
    "ksvd",
    "ksvd_dense",
    "ksvd_products",
    "ksvd_softmax",
    "ksvd_sparse",
    "log_norms",
    "objective",
    "orthonormal_columns",
    "paired_signs",
    "primal_weights",
    "rpca",
    "tall_qr",
    "to_field",
    "unit_frobenius",
]
