"""A tiny encoder in a folder, with a tokeniser, as Hugging Face saves it, and a text that it can read."""

from pathlib import Path

import pytest

from kernelhead.rng import seeded

WORDS = [
    "[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]",
    "the", "a", "cat", "dog", "bird", "sat", "ran", "flew",
    "on", "under", "over", "mat", "tree", "house", ".",
]  # fmt: skip


def saved_bert(folder: Path) -> Path:
    """Two layers of four heads."""
    transformers = pytest.importorskip("transformers")
    folder.mkdir(parents=True)
    (folder / "vocab.txt").write_text("\n".join(WORDS) + "\n")
    config = transformers.BertConfig(
        vocab_size=len(WORDS),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=64,
        max_position_embeddings=32,
    )
    with seeded(0):
        model = transformers.BertModel(config)
    model.save_pretrained(folder)
    transformers.BertTokenizer(vocab=str(folder / "vocab.txt")).save_pretrained(folder)
    return folder


def text(file: Path, lines: int = 40) -> Path:
    """Sentences of several lengths."""
    nouns, verbs, places = WORDS[7:10], WORDS[10:13], WORDS[13:16]
    said = [
        f"the {nouns[i % 3]} {verbs[i // 3 % 3]} {places[i % 3]} the {WORDS[16 + i % 3]}" + " ." * (i % 2 + 1)
        for i in range(lines)
    ]
    file.write_text("\n".join(said) + "\n")
    return file
