"""Labelled series: their type, their files, and generators whose answer is known."""

from kernelhead.data.readers import has_test_part, known_sets, read_series, write_predictions
from kernelhead.data.series import Series, Standardiser, batches, epoch_order, padded, split
from kernelhead.data.synthetic import echo_motifs, echo_series

__all__ = [
    "Series",
    "Standardiser",
    "batches",
    "echo_motifs",
    "echo_series",
    "epoch_order",
    "has_test_part",
    "known_sets",
    "padded",
    "read_series",
    "split",
    "write_predictions",
]
