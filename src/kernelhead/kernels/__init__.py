"""Build: points in, features or entries out."""

from kernelhead.kernels.base import AbstractKernel
from kernelhead.kernels.features import draw_frequencies, polynomial_features, positive_features, unit_rows
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

__all__ = [
    "KERNELS",
    "AbstractKernel",
    "Cosine",
    "Elu",
    "Exponential",
    "Identity",
    "Polynomial",
    "Relu",
    "draw_frequencies",
    "named_kernel",
    "polynomial_features",
    "positive_features",
    "unit_rows",
]
