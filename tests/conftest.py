"""One profile for property tests and one thread for torch, so that every run is the same run."""

import pytest
import torch
from hypothesis import settings

settings.register_profile("house", deadline=None, derandomize=True, max_examples=25)
settings.register_profile("nightly", deadline=None, derandomize=False, max_examples=25)
settings.load_profile("house")

torch.set_num_threads(1)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests that need a GPU say so where there is none."""
    if not torch.cuda.is_available():
        for item in items:
            if item.get_closest_marker("gpu"):
                item.add_marker(pytest.mark.skip(reason="no CUDA device"))
