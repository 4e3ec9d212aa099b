"""Read a Hugging Face model: its attentions, how fast their singular values fall, which could go primal.

python examples/read_huggingface.py                                       # a tiny BERT, built here, untrained
python examples/read_huggingface.py --model path/to/bert --text text.txt  # a folder of `save_pretrained`

Nothing is downloaded. To have a real model as a folder, where there is a network, once:
    hf download sentence-transformers/all-MiniLM-L6-v2 --local-dir minilm
"""

import argparse
from pathlib import Path

import torch

from kernelhead.inspection import alignment, host_sides, plan, spectra
from kernelhead.rng import seeded
from kernelhead.surgery import open_host, read_inputs, sites

TEXT = [
    "the river rose after the rain and took the old bridge with it",
    "a loan from the bank paid for the new one",
    "people on both sides of the river now cross it every day",
    "nobody remembers how the old bridge looked",
]


def main() -> None:
    """Open, read, print a table and what it says."""
    given = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    given.add_argument("--model", type=Path, help="folder of a saved model; built in --out by default")
    given.add_argument("--text", type=Path, help="text, a case on a line; four sentences by default")
    given.add_argument("--out", type=Path, default=Path("."), help="folder of what is written")
    given.add_argument("--error", type=float, default=0.2, help="of outputs, within which a rank is wanted")
    chosen = given.parse_args()

    chosen.out.mkdir(parents=True, exist_ok=True)
    text = chosen.text or chosen.out / "text.txt"
    if chosen.text is None:
        text.write_text("\n".join(TEXT) + "\n", encoding="utf-8")
    host = open_host(str(chosen.model or tiny_bert(chosen.out / "tiny-bert")))
    batch = read_inputs(host, text, cases=16, length=64)
    cases, tokens = batch["input_ids"].shape
    print(f"{type(host.model).__name__}, {cases} cases of at most {tokens} tokens")
    print(f"{'attention':32} heads  effective rank  rank for an error of {chosen.error}")
    wanted = {layer.path: layer for layer in plan(host.model, batch, error=chosen.error, repeats=0).layers}
    read = {layer.path: layer for layer in spectra(host.model, batch)}
    for site in sites(host.model):
        ranks = read[site.path].effective_rank
        rank = wanted[site.path].rank if site.path in wanted else site.reason
        print(f"{site.path:32} {site.heads:5}  {min(ranks):5.1f} to {max(ranks):5.1f}  {rank}")
    for path, s in host_sides(host.model, batch).sides.items():
        found = alignment(s.query, s.key, s.value, mask=s.mask, points=s.points)
        print(f"are the values of {path} those of kernel PCA? {found.verdict}")
    if chosen.model is None:
        print("the model is untrained: these figures say how to read one, and nothing about language")


def tiny_bert(folder: Path) -> Path:
    """Build a BERT of two layers with random weights and a vocabulary of the sentences, and save it."""
    from transformers import BertConfig, BertModel, BertTokenizer
    from transformers.utils.logging import disable_progress_bar

    words = sorted({word for line in TEXT for word in line.split()})
    folder.mkdir(parents=True, exist_ok=True)
    vocabulary = folder / "vocab.txt"
    vocabulary.write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words]), encoding="utf-8")
    config = BertConfig(
        vocab_size=len(words) + 5,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=64,
        initializer_range=0.3,  # so that attention is far from even
    )
    with seeded(0):
        model = BertModel(config)
    disable_progress_bar()
    BertTokenizer(vocab=str(vocabulary)).save_pretrained(folder)
    model.save_pretrained(folder)
    return folder


if __name__ == "__main__":
    torch.set_grad_enabled(False)
    main()
