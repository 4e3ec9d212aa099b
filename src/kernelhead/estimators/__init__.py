"""The estimator face: fit, transform, predict. Each needs its own extra, so import it by its file."""

__all__ = ["SeriesClassifier"]


def __getattr__(name: str) -> object:
    """Import an estimator on first use: its base class comes from an extra."""
    if name != "SeriesClassifier":
        raise AttributeError(f"module 'kernelhead.estimators' has no attribute {name!r}")
    from kernelhead.estimators.series import SeriesClassifier

    return SeriesClassifier
