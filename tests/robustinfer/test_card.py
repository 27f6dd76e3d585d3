"""The card: its JSON form, its schema, and cards that cannot be."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from robustinfer import Card, CardMember, InputSpec, Threat
from robustinfer.card import card_schema
from robustinfer.errors import CardError

FULL = Card(
    classes=("cat", "dog"),
    input=InputSpec(3, 32, 32, resize="bicubic"),
    name="pets",
    version="2",
    sigma=0.25,
    threat=Threat("l2", 0.5),
    members=(CardMember("resnet20", 1.0, 1), CardMember("resnet20", 0.5, 2)),
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


def test_what_older_cards_did_not_have_is_left_out() -> None:
    document = json.loads(SMALL.dumps())
    assert "noise_trained" not in document
    assert "crop" not in document["input"]
    wrapped = dataclasses.replace(
        SMALL, input=InputSpec(1, 8, 8, resize="bicubic", crop=0.875), sigma=0.25, noise_trained=False
    )
    document = json.loads(wrapped.dumps())
    assert document["input"]["crop"] == 0.875
    assert document["noise_trained"] is False
    assert Card.from_json(document) == wrapped
    jsonschema.validate(document, card_schema())


def test_a_card_in_a_file_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "card.json").write_text(FULL.dumps())
    assert Card.read(tmp_path / "card.json") == FULL
    with pytest.raises(CardError, match="Cannot read the card"):
        Card.read(tmp_path / "nothing.json")
    (tmp_path / "card.json").write_text("{")
    with pytest.raises(CardError, match=r"card\.json: "):
        Card.read(tmp_path / "card.json")


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
        ({"input": {"channels": 1, "height": 8, "width": 8, "resize": "strech"}}, "resize is one of.*'strech'"),
        ({"input": {"channels": 1, "height": 8, "width": 8, "resize": "nearest", "crop": 1.5}}, "crop is a share"),
        ({"input": {"channels": 1, "height": 8, "width": 8, "crop": 0.5}}, "crop is a share"),
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
