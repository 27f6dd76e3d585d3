"""What answers the requests of one model, in this process."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from robust.serve.asgi.counter import Counter
from robust.serve.service.desk import Desk
from robust.serve.service.limits import Limits
from robust.serve.service.state import State

from robustinfer import Predictor


@pytest.fixture
def counter(predictor: Predictor) -> Iterator[Counter]:
    """The counter of a model, with one thread that reads."""
    with ThreadPoolExecutor(1) as readers:
        desk = Desk(predictor, name="tiny", limits=Limits(allow_seeds=True, max_n=10**9), state=State(None))
        yield Counter(desk, readers, version="1", most=99)
