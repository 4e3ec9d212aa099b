"""Labelled series, images and texts: their types, their files, and generators whose answer is known."""

from kernelhead.data.corruptions import CORRUPTIONS, Corruption, corrupt, swap_words
from kernelhead.data.curves import instance_curves
from kernelhead.data.events import Events, is_event_file, lag_lookup, read_events
from kernelhead.data.features import Features, read_features, write_ranking
from kernelhead.data.images import Images, Rows, read_images
from kernelhead.data.listops import draw_listops, listops_value, read_listops
from kernelhead.data.lookup import Lookup, lookup_tables
from kernelhead.data.pathfinder import draw_pathfinder
from kernelhead.data.readers import has_test_part, known_sets, read_series, write_predictions
from kernelhead.data.series import Series, Standardiser, batches, epoch_order, padded, split
from kernelhead.data.sources import folder_of
from kernelhead.data.synthetic import echo_motifs, echo_series
from kernelhead.data.table_sets import Cells, read_table
from kernelhead.data.tables import Column, Schema, Table, TableEncoder
from kernelhead.data.text import Reviews, Words, read_bytes, read_reviews, read_words
from kernelhead.data.tokens import Tokens, as_tokens
from kernelhead.data.trajectories import (
    Trajectories,
    Windows,
    normalised_score,
    read_trajectories,
    windows,
)

__all__ = [
    "CORRUPTIONS",
    "Cells",
    "Column",
    "Corruption",
    "Events",
    "Features",
    "Images",
    "Lookup",
    "Reviews",
    "Rows",
    "Schema",
    "Series",
    "Standardiser",
    "Table",
    "TableEncoder",
    "Tokens",
    "Trajectories",
    "Windows",
    "Words",
    "as_tokens",
    "batches",
    "corrupt",
    "draw_listops",
    "draw_pathfinder",
    "echo_motifs",
    "echo_series",
    "epoch_order",
    "folder_of",
    "has_test_part",
    "instance_curves",
    "is_event_file",
    "known_sets",
    "lag_lookup",
    "listops_value",
    "lookup_tables",
    "normalised_score",
    "padded",
    "read_bytes",
    "read_events",
    "read_features",
    "read_images",
    "read_listops",
    "read_reviews",
    "read_series",
    "read_table",
    "read_trajectories",
    "read_words",
    "split",
    "swap_words",
    "windows",
    "write_predictions",
    "write_ranking",
]
