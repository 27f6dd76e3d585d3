"""The card: its JSON form, its schema, and cards that cannot be."""

import json
from typing import Any

import jsonschema
import pytest

from robustinfer import Card, InputSpec, Member, Threat
from robustinfer.card import card_schema
from robustinfer.errors import CardError

FULL = Card(
    classes=("cat", "dog"),
    input=InputSpec(3, 32, 32, resize="bicubic"),
    name="pets",
    version="2",
    sigma=0.25,
    threat=Threat("l2", 0.5),
    members=(Member("resnet20", 1.0, 1), Member("resnet20", 0.5, 2)),
    sampler=("integer", "continuous"),
    training={"recipe": {"epochs": 3}},
    license="Apache-2.0",
)
SMALL = Card(classes=("a", "b"), input=InputSpec(1, 8, 8))


@pytest.mark.parametrize("card", [FULL, SMALL], ids=["full", "small"])
def test_a_card_survives_json_and_follows_its_schema(card: Any) -> None:
    assert Card.loads(card.dumps()) == card
    assert Card.loads(card.dumps()).dumps() == card.dumps()
    jsonschema.Draft202012Validator.check_schema(card_schema())
    jsonschema.validate(json.loads(card.dumps()), card_schema())


def test_unknown_keys_are_left_alone() -> None:
    assert Card.from_json(SMALL.to_json() | {"colour": "blue"}) == SMALL


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"format": 2}, "reads cards of format 1; this one says 2"),
        ({"classes": ["a"]}, "at least two classes; this one has 1"),
        ({"input": {"channels": 1, "height": 0, "width": 8}}, "positive sizes"),
        ({"input": {"channels": 1}}, "malformed"),
        ({"input": {"channels": 1, "height": "8", "width": 8}}, "malformed"),
        ({"sigma": -1}, "positive number or null; this one has -1"),
        ({"sigma": "0.25"}, "malformed"),
        ({"members": [{"beta": 1.0}]}, "malformed"),
        ({"classes": None}, "malformed"),
    ],
)
def test_cards_that_cannot_be(change: Any, sentence: Any) -> None:
    with pytest.raises(CardError, match=sentence):
        Card.from_json(SMALL.to_json() | change)


@pytest.mark.parametrize("text", ["", "{", "[1]", "null", b"\xff\xfe"])
def test_documents_that_are_no_cards(text: Any) -> None:
    with pytest.raises(CardError):
        Card.loads(text)
