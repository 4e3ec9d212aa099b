"""kernelhead rerank: neighbours of queries in a database of features, re-ordered in their own context."""

from pathlib import Path

import torch
from jsonargparse import ArgumentParser, Namespace

from kernelhead.cli.places import FILE, check_place
from kernelhead.cli.terminal import say, say_json
from kernelhead.data import Features, read_features, write_ranking
from kernelhead.errors import BadInput
from kernelhead.estimators.reranker import Reranker
from kernelhead.inspection import mean_average_precision, precision_at
from kernelhead.models import RANKERS, Ranking, ranked

HELP = "rank a database of features for queries, by a learned network or by a method that learns nothing"
EXAMPLE = """kernelhead rerank database.npz --queries new.npz --train labelled.npz --out ranked.csv
kernelhead rerank database.npz --query item-7 --method alpha-qe"""
NETWORK = "network"
AT = 10


def arguments(parser: ArgumentParser) -> None:
    """What the verb takes."""
    parser.add_argument("database", type=FILE, help="features of items: .npy, .npz (x, ids, labels) or .csv")
    parser.add_argument("--queries", type=FILE, help="features of queries; by default every item is one")
    parser.add_argument("--query", help="id of the one item that is the query")
    parser.add_argument("--method", help=f"{NETWORK}, or without learning: {', '.join(RANKERS)}")
    parser.add_argument("--train", type=FILE, help="labelled features that a network learns from")
    parser.add_argument("--model", type=FILE, help="network that --save wrote")
    parser.add_argument("--save", type=FILE, help="file for the trained network, such as mine.safetensors")
    parser.add_argument("--attention", default="softmax", help="of the network: softmax, primal, ...")
    parser.add_argument("--steps", type=int, default=300, help="of training")
    parser.add_argument("--seed", type=int, default=0, help="of training")
    parser.add_argument("--k", type=int, default=64, help="items of a list that are re-ordered")
    parser.add_argument("--top", type=int, default=100, help="items of a ranking that are written")
    parser.add_argument("--out", type=FILE, default=Path("ranked.csv"), help="file to write")
    parser.add_argument("--json", action="store_true", help="print a JSON record")


def run(chosen: Namespace, given: list[str]) -> int:
    """Read, fit where that is asked for, rank, write."""
    for place in (chosen.out, chosen.save):
        if place is not None:
            check_place("rerank", place)
    if chosen.query is not None and chosen.queries is not None:
        raise BadInput("rerank: --query names an item of the database and --queries a file; give one of them")
    database = read_features(chosen.database)
    queries, own = _queries(chosen, database)
    learned = chosen.train is not None or chosen.model is not None
    method = chosen.method or (NETWORK if learned else "alpha-qe")
    if method == NETWORK:
        order, scores = _network(chosen).rerank(queries.x, database.x, chosen.k, own=own)
        ranking = Ranking(torch.from_numpy(order), torch.from_numpy(scores))
    elif learned or chosen.save is not None:
        raise BadInput(f"rerank: {method} learns nothing; leave out --train, --model and --save")
    else:
        sides = torch.from_numpy(queries.x), torch.from_numpy(database.x)
        ranking = ranked(method, *sides, chosen.k, own=own)
    _write(chosen.out, queries, database, ranking.head(chosen.top))
    record = {"method": method, "queries": len(queries), "items": len(database), "k": chosen.k}
    figures = _figures(queries, database, ranking, own)
    if chosen.json:
        say_json({**record, **figures, "out": str(chosen.out)})
        return 0
    said = "".join(f", {name.replace('_', ' ')} {figure:.4f}" for name, figure in figures.items())
    many = "1 query" if len(queries) == 1 else f"{len(queries)} queries"
    say(f"{many} among {len(database)} items by {method}{said}; ranked in {chosen.out}")
    return 0


def _queries(chosen: Namespace, database: Features) -> tuple[Features, torch.Tensor | None]:
    """The queries, and where they are in the database where they are of it."""
    if chosen.queries is not None:
        return read_features(chosen.queries), None
    if chosen.query is None:
        return database, torch.arange(len(database))
    place = database.place(chosen.query)
    labels = None if database.labels is None else (database.labels[place],)
    one = Features(database.x[place : place + 1], (chosen.query,), labels, database.name)
    return one, torch.tensor([place])


def _network(chosen: Namespace) -> Reranker:
    """From a file, or trained on labelled features."""
    if (chosen.train is None) == (chosen.model is None):
        raise BadInput("rerank: a network comes from --train or from --model; give one of them")
    if chosen.model is not None:
        return Reranker.load(chosen.model)
    train = read_features(chosen.train)
    if train.labels is None:
        raise BadInput(f"rerank: {chosen.train} has no labels, so nothing can be learned from it")
    model = Reranker(
        chosen.attention, k=chosen.k, anchors=chosen.k, steps=chosen.steps, random_state=chosen.seed
    ).fit(train.x, train.labels)
    if chosen.save is not None:
        model.save(chosen.save)
    return model


def _write(path: Path, queries: Features, database: Features, ranking: Ranking) -> None:
    write_ranking(
        path,
        (
            (query, rank, database.ids[place], round(score, 6))
            for query, places, scores in zip(
                queries.ids, ranking.order.tolist(), ranking.scores.tolist(), strict=True
            )
            for rank, (place, score) in enumerate(zip(places, scores, strict=True), start=1)
        ),
    )


def _figures(
    queries: Features, database: Features, ranking: Ranking, own: torch.Tensor | None
) -> dict[str, float]:
    """How good the rankings are, where labels say so."""
    if queries.labels is None or database.labels is None:
        return {}
    relevant = torch.tensor([[one == other for other in database.labels] for one in queries.labels])
    if own is not None:
        relevant.scatter_(1, own[:, None], False)
    if not relevant.any():
        return {}
    return {
        "mean_average_precision": mean_average_precision(ranking.order, relevant),
        f"precision_at_{AT}": precision_at(ranking.order, relevant, AT),
    }
