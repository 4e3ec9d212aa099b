"""Labelled series, images and texts: their types, their files, and generators whose answer is known."""

from kernelhead.data.bytes import read_corpus
from kernelhead.data.clouds import Clouds, gaussian_clouds
from kernelhead.data.corpus import (
    BREAK,
    broken_at,
    choose_words,
    count_words,
    read_sentences,
    token_blocks,
)
from kernelhead.data.corruptions import CORRUPTIONS, Corruption, corrupt, swap_words
from kernelhead.data.curves import instance_curves
from kernelhead.data.events import Events, is_event_file, lag_lookup, read_events
from kernelhead.data.features import Features, read_features, write_ranking
from kernelhead.data.images import Images, Rows, read_images
from kernelhead.data.linear_models import Cascades, LinearModel, draw_cascades, linear_model
from kernelhead.data.listops import draw_listops, listops_marks, listops_value, read_listops
from kernelhead.data.lookup import Lookup, lookup_tables
from kernelhead.data.pathfinder import draw_pathfinder
from kernelhead.data.readers import has_test_part, known_sets, read_series, write_predictions
from kernelhead.data.scenes import Scenes, compose_digits, draw_scenes
from kernelhead.data.series import Series, Standardiser, batches, epoch_order, padded, split
from kernelhead.data.sources import folder_of
from kernelhead.data.synthetic import echo_motifs, echo_series
from kernelhead.data.table_sets import Cells, read_table
from kernelhead.data.tables import Column, Schema, Table, TableEncoder
from kernelhead.data.tangles import Marked, draw_marked, draw_tangled, read_pathfinder
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
    "BREAK",
    "CORRUPTIONS",
    "Cascades",
    "Cells",
    "Clouds",
    "Column",
    "Corruption",
    "Events",
    "Features",
    "Images",
    "LinearModel",
    "Lookup",
    "Marked",
    "Reviews",
    "Rows",
    "Scenes",
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
    "broken_at",
    "choose_words",
    "compose_digits",
    "corrupt",
    "count_words",
    "draw_cascades",
    "draw_listops",
    "draw_marked",
    "draw_pathfinder",
    "draw_scenes",
    "draw_tangled",
    "echo_motifs",
    "echo_series",
    "epoch_order",
    "folder_of",
    "gaussian_clouds",
    "has_test_part",
    "instance_curves",
    "is_event_file",
    "known_sets",
    "lag_lookup",
    "linear_model",
    "listops_marks",
    "listops_value",
    "lookup_tables",
    "normalised_score",
    "padded",
    "read_bytes",
    "read_corpus",
    "read_events",
    "read_features",
    "read_images",
    "read_listops",
    "read_pathfinder",
    "read_reviews",
    "read_sentences",
    "read_series",
    "read_table",
    "read_trajectories",
    "read_words",
    "split",
    "swap_words",
    "token_blocks",
    "windows",
    "write_predictions",
    "write_ranking",
]
