"""One profile for property tests and one thread for torch, so that every run is the same run."""

import torch
from hypothesis import settings

settings.register_profile("house", deadline=None, derandomize=True, max_examples=25)
settings.register_profile("nightly", deadline=None, derandomize=False, max_examples=25)
settings.load_profile("house")

torch.set_num_threads(1)
