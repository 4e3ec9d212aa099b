"""Self-attention heads as kernel machines: build, factor, apply and read the kernel."""

__version__ = "0.1.0"

__all__ = [
    "data",
    "decomposition",
    "estimators",
    "inspection",
    "kernels",
    "models",
    "nn",
    "ops",
    "pattern",
    "records",
    "report",
    "rng",
    "surgery",
    "training",
]


def __getattr__(name: str) -> object:
    """Import a room on first use, so that `import kernelhead` costs nothing."""
    if name not in __all__:
        raise AttributeError(f"module 'kernelhead' has no attribute {name!r}")
    from importlib import import_module

    return import_module(f"kernelhead.{name}")
