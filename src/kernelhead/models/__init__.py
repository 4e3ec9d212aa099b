"""Whole networks, made of the blocks and attentions below them."""

from kernelhead.models.blocks import Block, Positions, sinusoids
from kernelhead.models.decision import DecisionTransformer, action_loss
from kernelhead.models.events import ENCODINGS, EventModel
from kernelhead.models.language import Decoding, LanguageModel
from kernelhead.models.patches import PatchAttention
from kernelhead.models.ranking import (
    RANKERS,
    Ranking,
    affinity_cosine,
    alpha_qe,
    expanded,
    expanded_sides,
    first_round,
    k_reciprocal,
    list_affinity,
    list_items,
    ranked,
)
from kernelhead.models.registry import ATTENTIONS, Sizes, build_attention, layer_names
from kernelhead.models.reranker import RerankerModel, rerank
from kernelhead.models.retrieval import PairClassifier
from kernelhead.models.sequence import SequenceClassifier
from kernelhead.models.tabular import TableBlock, TableModel, released_weights
from kernelhead.models.vision import ImageClassifier

__all__ = [
    "ATTENTIONS",
    "ENCODINGS",
    "RANKERS",
    "Block",
    "DecisionTransformer",
    "Decoding",
    "EventModel",
    "ImageClassifier",
    "LanguageModel",
    "PairClassifier",
    "PatchAttention",
    "Positions",
    "Ranking",
    "RerankerModel",
    "SequenceClassifier",
    "Sizes",
    "TableBlock",
    "TableModel",
    "action_loss",
    "affinity_cosine",
    "alpha_qe",
    "build_attention",
    "expanded",
    "expanded_sides",
    "first_round",
    "k_reciprocal",
    "layer_names",
    "list_affinity",
    "list_items",
    "ranked",
    "released_weights",
    "rerank",
    "sinusoids",
]
