"""The estimator face: fit, transform, predict. Each needs its own extra, so import it by its file."""

from importlib import import_module

_ROOMS = {
    "CooccurrenceEmbedding": "cooccurrence",
    "EventClassifier": "events",
    "LandmarkClassifier": "landmarks",
    "Reranker": "reranker",
    "SeriesClassifier": "series",
    "TableClassifier": "tabular",
    "TableRegressor": "tabular",
    "TransportClassifier": "transport",
}

__all__ = [
    "CooccurrenceEmbedding",
    "EventClassifier",
    "LandmarkClassifier",
    "Reranker",
    "SeriesClassifier",
    "TableClassifier",
    "TableRegressor",
    "TransportClassifier",
]


def __getattr__(name: str) -> object:
    """Import an estimator on first use: its base class comes from an extra."""
    if name not in _ROOMS:
        raise AttributeError(f"module 'kernelhead.estimators' has no attribute {name!r}")
    return getattr(import_module(f"kernelhead.estimators.{_ROOMS[name]}"), name)
