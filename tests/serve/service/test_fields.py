"""The fields of a request are the settings of the library, in every form and in the OpenAPI document."""

from typing import Any

import pytest
from robust.serve.service import openapi
from robust.serve.service.fields import FIELDS, from_json, from_text
from robust.serve.service.refusals import Refusal

from robustinfer.settings import SETTINGS

VALUES: dict[str, Any] = {
    "mode": "predict",
    "n": 5000,
    "alpha": 0.01,
    "radius": 0.5,
    "tolerance": 0.25,
    "deadline": 2.5,
    "bound": "top-class",
    "n0": 0,
    "members": False,
    "sigma": 0.5,
    "noise": "integer",
    "seed": 2**64 - 1,
}


def test_every_setting_can_be_sent_in_every_form() -> None:
    assert set(FIELDS) == {"mode", *SETTINGS}
    values = {name: VALUES.get(name, _some(name)) for name in FIELDS}
    assert from_json(values) == values
    assert from_text({name: _text(value) for name, value in values.items()}) == values


def _some(name: str) -> Any:
    """A value of a setting that came later than this test."""
    kind = FIELDS[name].kind
    return kind[0] if isinstance(kind, tuple) else kind(1)


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


@pytest.mark.parametrize(("text", "found"), [("yes", "'yes'"), ("1", "'1'"), ("", "''")])
def test_a_truth_value_is_true_or_false(text: str, found: str) -> None:
    with pytest.raises(Refusal, match=f"Expected true or false for members, found {found}"):
        from_text({"members": text})
    assert from_text({"members": "True"}) == {"members": True}


def test_the_openapi_document_has_the_settings_of_today() -> None:
    """If this fails, run `python -m robust.serve.service.openapi`."""
    assert openapi.filled(openapi.whole_document()) == openapi.whole_document()
