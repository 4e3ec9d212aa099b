"""One profile for property tests and one thread for torch, so that every run is the same run."""

import os
import warnings

import pytest
import torch
from hypothesis import settings

settings.register_profile("house", deadline=None, derandomize=True, max_examples=25)
settings.register_profile("nightly", deadline=None, derandomize=False, max_examples=25)
settings.load_profile("house")

torch.set_num_threads(1)
os.environ.setdefault("OMP_NUM_THREADS", "1")  # and of processes that tests start
if torch.cuda.is_available():
    # The first product of a backward pass warns that its thread has no context yet.
    with warnings.catch_warnings(action="ignore"):
        (
            torch.ones(2, 2, device="cuda", requires_grad=True) @ torch.ones(2, 2, device="cuda")
        ).sum().backward()


def pytest_addoption(parser: pytest.Parser) -> None:
    """``--share 2/5`` runs the second of five shares, for processes side by side without a plugin."""
    parser.addoption("--share", default="1/1", metavar="I/N", help="run every N-th test, from the I-th on")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep this process's share; tests that need a GPU say so where there is none."""
    place, count = map(int, config.getoption("--share").split("/"))
    items[:] = items[place - 1 :: count]
    if config.pluginmanager.hasplugin("_cov"):
        for item in items:
            if item.get_closest_marker("slow"):
                item.add_marker("no_cover")  # what they alone reach counts as not reached
    if not torch.cuda.is_available():
        for item in items:
            if item.get_closest_marker("gpu"):
                item.add_marker(pytest.mark.skip(reason="no CUDA device"))
