"""Fields that appear twice in a form or a query string.

TorchServe's worker keeps the last value of a name and forgets that there were others: two images in one form would be
answered as if there were one. TorchServe 0.12 is the last one, so the step that forgets is wrapped here.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import wraps
from typing import Any

__all__ = ["REPEATED", "names_of", "tell_repeated"]

REPEATED = "repeated fields"
"""The entry of a request's data that names them, as a tuple; what clients send is always bytes."""


def tell_repeated() -> None:
    """In a worker: let every request carry the names that came more than once, under `REPEATED`."""
    from ts.service import Service

    original = Service.retrieve_data_for_inference

    @wraps(original)
    def retrieve(batch: Sequence[Mapping[str, Any]] | None) -> Any:
        headers, inputs, ids = original(batch)
        for request, fields in zip(batch or (), inputs, strict=True):
            counts = Counter(parameter["name"] for parameter in request["parameters"])
            if names := tuple(name for name, count in counts.items() if count > 1):
                fields[REPEATED] = names
        return headers, inputs, ids

    Service.retrieve_data_for_inference = staticmethod(retrieve)


def names_of(fields: Mapping[str, Any]) -> tuple[str, ...]:
    """The names that came more than once, if `tell_repeated` has seen any."""
    found = fields.get(REPEATED)
    return found if isinstance(found, tuple) else ()
