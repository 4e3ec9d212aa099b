"""Build: points in, features or entries out."""

from kernelhead.kernels.anchors import anchor_affinity
from kernelhead.kernels.base import AbstractKernel
from kernelhead.kernels.cooccurrence import CooccurrenceKernel, association, count_pairs
from kernelhead.kernels.features import (
    draw_frequencies,
    gram,
    polynomial_features,
    positive_features,
    unit_rows,
)
from kernelhead.kernels.similarity import (
    KERNELS,
    Cosine,
    Elu,
    Exponential,
    Identity,
    Polynomial,
    Relu,
    named_kernel,
)
from kernelhead.kernels.time import (
    AbstractTimeKernel,
    BochnerKernel,
    MercerKernel,
    bochner_features,
    log_lags,
    mercer_features,
    phases,
    product_features,
    published_bochner,
    published_mercer,
    quantile_frequencies,
)

__all__ = [
    "KERNELS",
    "AbstractKernel",
    "AbstractTimeKernel",
    "BochnerKernel",
    "CooccurrenceKernel",
    "Cosine",
    "Elu",
    "Exponential",
    "Identity",
    "MercerKernel",
    "Polynomial",
    "Relu",
    "anchor_affinity",
    "association",
    "bochner_features",
    "count_pairs",
    "draw_frequencies",
    "gram",
    "log_lags",
    "mercer_features",
    "named_kernel",
    "phases",
    "polynomial_features",
    "positive_features",
    "product_features",
    "published_bochner",
    "published_mercer",
    "quantile_frequencies",
    "unit_rows",
]
