"""Whole networks, made of the blocks and attentions below them."""

from kernelhead.models.blocks import Block, Positions, sinusoids
from kernelhead.models.decision import DecisionTransformer, action_loss
from kernelhead.models.language import Decoding, LanguageModel
from kernelhead.models.patches import PatchAttention
from kernelhead.models.registry import ATTENTIONS, Sizes, build_attention, layer_names
from kernelhead.models.retrieval import PairClassifier
from kernelhead.models.sequence import SequenceClassifier
from kernelhead.models.vision import ImageClassifier

__all__ = [
    "ATTENTIONS",
    "Block",
    "DecisionTransformer",
    "Decoding",
    "ImageClassifier",
    "LanguageModel",
    "PairClassifier",
    "PatchAttention",
    "Positions",
    "SequenceClassifier",
    "Sizes",
    "action_loss",
    "build_attention",
    "layer_names",
    "sinusoids",
]
