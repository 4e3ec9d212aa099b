"""From scikit-learn's `random_state` to the seed of a run."""

import numpy as np


def as_seed(random_state: int | np.random.RandomState | None) -> int:
    """The number that a random state stands for, 0 for none.

    Example:
        >>> as_seed(None), as_seed(7), as_seed(np.random.RandomState(0)) == as_seed(np.random.RandomState(0))
        (0, 7, True)
    """
    if random_state is None:
        return 0
    if isinstance(random_state, np.random.RandomState):
        return int(random_state.randint(2**31))
    return int(random_state)
