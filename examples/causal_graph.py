"""A causal graph from attention: a model whose causes are known, then a matrix of your own.

python examples/causal_graph.py                          # rain and sprinkler, and thirty random models
python examples/causal_graph.py --attention mine.npy     # yours: (n, n), rows attend to columns

A graph of a trained model is a hypothesis: hold it against the baselines that stand beside it.
"""

import argparse
from pathlib import Path

import numpy as np
import torch

from kernelhead.data import LinearModel, linear_model
from kernelhead.inspection import attention_graph, graph_baselines, skeleton_f1

NAMES = ["rain", "sprinkler", "wet lawn", "slippery", "wet shoes"]
EFFECTS = [(0, 2, 0.8), (1, 2, 0.8), (2, 3, 0.9), (2, 4, 0.7)]


def main() -> None:
    """Print edges with their marks, and how often they are right where the answer is known."""
    given = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    given.add_argument("--attention", type=Path, help=".npy of attention, (n, n)")
    given.add_argument("--n", type=int, default=768, help="samples that a correlation counts for")
    given.add_argument("--alpha", type=float, default=0.01, help="p-value from which on is independent")
    given.add_argument("--out", type=Path, help="file for GraphViz")
    chosen = given.parse_args()

    if chosen.attention:
        attention, names = torch.from_numpy(np.load(chosen.attention)).double(), None
    else:
        attention, names = torch.from_numpy(LinearModel.of(EFFECTS).attention), NAMES
    graph = attention_graph(attention, n=chosen.n, alpha=chosen.alpha)
    names = names or [str(place) for place in range(len(attention))]
    print(f"{len(names)} points, {graph.tests} tests of independence")
    for a, marks, b in graph.edges():
        print(f"    {names[a]} {marks} {names[b]}")
    print("marks: > is no cause of the other, - is a cause, o cannot be told from independences")
    beside = graph_baselines(attention, len(graph.edges()))
    shared = {name: skeleton_f1(edges, graph.skeleton) for name, edges in beside.items()}
    print(
        "edges shared with as many by " + ", ".join(f"{name} {share:.2f}" for name, share in shared.items())
    )
    if chosen.out:
        chosen.out.write_text(graph.to_dot(names, "attention"), encoding="utf-8")
        print(f"for GraphViz: {chosen.out}")
    if not chosen.attention:
        known_answers(30, n=chosen.n, alpha=chosen.alpha)


def known_answers(count: int, *, n: int, alpha: float) -> None:
    """F1 of skeletons over random linear models of eight variables and two edges each."""
    found: dict[str, list[float]] = {}
    for seed in range(count):
        model = linear_model(8, seed=seed)
        attention, truth = torch.from_numpy(model.attention), torch.from_numpy(model.skeleton)
        graph = attention_graph(attention, n=n, alpha=alpha)
        found.setdefault("graph", []).append(skeleton_f1(graph.skeleton, truth))
        for name, edges in graph_baselines(attention, int(truth.sum()) // 2, seed=seed).items():
            found.setdefault(name, []).append(skeleton_f1(edges, truth))
    print(f"{count} random models whose attention is exact, edges that are right, F1:")
    print("    " + ", ".join(f"{name} {np.mean(scores):.2f}" for name, scores in found.items()))


if __name__ == "__main__":
    main()
