"""Whole networks, made of the blocks and attentions below them."""

from kernelhead.models.blocks import Block, Positions, sinusoids
from kernelhead.models.registry import ATTENTIONS, Sizes, build_attention, layer_names
from kernelhead.models.sequence import SequenceClassifier

__all__ = [
    "ATTENTIONS",
    "Block",
    "Positions",
    "SequenceClassifier",
    "Sizes",
    "build_attention",
    "layer_names",
    "sinusoids",
]
