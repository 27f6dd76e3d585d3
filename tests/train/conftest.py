"""Tiny recipes and data for the training tests: seconds on one core, and a truth that can be computed by hand."""

from collections.abc import Iterator

import pytest
import torch
from robust.train import Recipe

TINY = Recipe(
    name="tiny",
    data="digits",
    limit=192,
    width=0.125,
    stages=2,
    epochs=1,
    batch=64,
    delta=0.1,
    steps=2,
    previous="exact",
    betas="corrective",
    refit=True,
    optimizer="adam",
    learning_rate=0.01,
    validation_images=50,
    select="best",
)
"""Two short stages on a few digits, with everything that a stage can do switched on."""


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> Iterator[None]:
    """Tests run side by side: one thread each is faster than many that wait for each other, and deterministic."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def tiny() -> Recipe:
    """`TINY`, for tests that change a little of it."""
    return TINY
