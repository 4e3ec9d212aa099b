"""Whole networks, made of the blocks and attentions below them."""

from kernelhead.models.blocks import Block, Positions, sinusoids
from kernelhead.models.decision import DecisionTransformer, action_loss
from kernelhead.models.events import ENCODINGS, EventModel
from kernelhead.models.language import Decoding, LanguageModel
from kernelhead.models.patches import PatchAttention
from kernelhead.models.planner import (
    LAWS,
    LEVINE2020,
    THRESHOLD,
    Regime,
    ShapeCost,
    ShapeLaw,
    Sizing,
    count_params,
    depth_threshold,
    plan_shape,
    shape_cost,
    shape_regime,
)
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
from kernelhead.models.transport import CloudBlock, CloudClassifier, TransportMap, mean_anchors, ring_anchors
from kernelhead.models.vision import ImageClassifier
from kernelhead.models.vision_language import (
    VisionLanguageModel,
    hide_regions,
    hide_words,
    vision_language_losses,
)

__all__ = [
    "ATTENTIONS",
    "ENCODINGS",
    "LAWS",
    "LEVINE2020",
    "RANKERS",
    "THRESHOLD",
    "Block",
    "CloudBlock",
    "CloudClassifier",
    "DecisionTransformer",
    "Decoding",
    "EventModel",
    "ImageClassifier",
    "LanguageModel",
    "PairClassifier",
    "PatchAttention",
    "Positions",
    "Ranking",
    "Regime",
    "RerankerModel",
    "SequenceClassifier",
    "ShapeCost",
    "ShapeLaw",
    "Sizes",
    "Sizing",
    "TableBlock",
    "TableModel",
    "TransportMap",
    "VisionLanguageModel",
    "action_loss",
    "affinity_cosine",
    "alpha_qe",
    "build_attention",
    "count_params",
    "depth_threshold",
    "expanded",
    "expanded_sides",
    "first_round",
    "hide_regions",
    "hide_words",
    "k_reciprocal",
    "layer_names",
    "list_affinity",
    "list_items",
    "mean_anchors",
    "plan_shape",
    "ranked",
    "released_weights",
    "rerank",
    "ring_anchors",
    "shape_cost",
    "shape_regime",
    "sinusoids",
    "vision_language_losses",
]
