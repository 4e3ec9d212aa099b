"""Labelled series, images and texts: their types, their files, and generators whose answer is known."""

from kernelhead.data.corruptions import CORRUPTIONS, Corruption, corrupt, swap_words
from kernelhead.data.images import Images, read_images
from kernelhead.data.readers import has_test_part, known_sets, read_series, write_predictions
from kernelhead.data.series import Series, Standardiser, batches, epoch_order, padded, split
from kernelhead.data.synthetic import echo_motifs, echo_series
from kernelhead.data.text import Reviews, Words, read_bytes, read_reviews, read_words

__all__ = [
    "CORRUPTIONS",
    "Corruption",
    "Images",
    "Reviews",
    "Series",
    "Standardiser",
    "Words",
    "batches",
    "corrupt",
    "echo_motifs",
    "echo_series",
    "epoch_order",
    "has_test_part",
    "known_sets",
    "padded",
    "read_bytes",
    "read_images",
    "read_reviews",
    "read_series",
    "read_words",
    "split",
    "swap_words",
    "write_predictions",
]
