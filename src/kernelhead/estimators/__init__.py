"""The estimator face: fit, transform, predict. Each needs its own extra, so import it by its file."""

from importlib import import_module

_ROOMS = {
    "EventClassifier": "events",
    "LandmarkClassifier": "landmarks",
    "Reranker": "reranker",
    "SeriesClassifier": "series",
    "TableClassifier": "tabular",
    "TableRegressor": "tabular",
}

__all__ = [
    "EventClassifier",
    "LandmarkClassifier",
    "Reranker",
    "SeriesClassifier",
    "TableClassifier",
    "TableRegressor",
]


def __getattr__(name: str) -> object:
    """Import an estimator on first use: its base class comes from an extra."""
    if name not in _ROOMS:
        raise AttributeError(f"module 'kernelhead.estimators' has no attribute {name!r}")
    return getattr(import_module(f"kernelhead.estimators.{_ROOMS[name]}"), name)
