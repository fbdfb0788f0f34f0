"""What layers that draw random numbers draw, such as dropout of a model of the user's own."""

from __future__ import annotations

import numpy as np
import torch


def seed_draws(seed: int, replica: int, step: int) -> None:
    """Seeds torch's generators for a step. Replicas, steps and jobs of other seeds draw others; a step that is done again on
    the same replica draws the same."""
    words = np.random.SeedSequence((seed, replica, step)).generate_state(1, np.uint64)
    torch.manual_seed(int(words[0]))
