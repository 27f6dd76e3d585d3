"""Forged certificates: each field of each procedure's certificate is changed in many ways, alone and in pairs.

A changed certificate that `verify` confirms must be a true one: the very certificate that its own request gives, or one
that differs only in what `replay.UNPROVEN` says cannot be proven.
"""

import copy
import dataclasses
import itertools
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from robustinfer import Card, CardMember, Certificate, InputSpec, Predictor, RobustinferError
from robustinfer.answers import certificate_of
from robustinfer.certificate import OPTIONAL
from robustinfer.errors import CertificateError
from robustinfer.replay import UNPROVEN
from robustinfer.requests import Request
from robustinfer.voting import scores_of

Array = npt.NDArray[Any]
GREY = np.full((1, 2, 2), 150, dtype=np.uint8)
TIE = np.full((1, 2, 2), 127, dtype=np.uint8)
PROCEDURES = ("fixed", "radius", "tolerance", "deadline")


class Engine:
    """Class 1 where the first pixel is above a threshold; with several thresholds, the members' scores."""

    name, device, batch = "half-spaces", "cpu", 4096

    def __init__(self, *thresholds: float) -> None:
        self.thresholds = np.array(thresholds, dtype=np.float32)

    def scores(self, images: Array) -> Array:
        margin = images.reshape(len(images), -1)[:, :1] - self.thresholds
        scores = np.stack([-margin, margin], axis=2).astype(np.float32)
        return scores[:, 0] if len(self.thresholds) == 1 else scores


def predictor_of(*thresholds: float) -> Predictor:
    card = Card(classes=("a", "b"), input=InputSpec(1, 2, 2), sigma=0.25)
    if len(thresholds) > 1:
        members = tuple(CardMember(f"m{i}", 1.0 + i / 10, i) for i in range(len(thresholds)))
        card = dataclasses.replace(card, kind="votes", members=members)
    return Predictor(Engine(*thresholds), card, digest="sha256:half-spaces")


@dataclass(frozen=True)
class Case:
    """A request; `until` ends it after so many samples, as a clock does."""

    settings: dict[str, Any]
    image: Array = dataclasses.field(default_factory=lambda: GREY)
    votes: bool = False
    until: int | None = None

    def predictor(self) -> Predictor:
        return predictor_of(0.45, 0.5, 0.52) if self.votes else predictor_of(0.5)


CASES = {
    "fixed": Case({"n": 600, "n0": 50}),
    "top-class": Case({"n": 600, "n0": 50, "bound": "top-class"}),
    "same samples": Case({"n": 600, "n0": 0}),
    "same samples, two-class": Case({"n": 600, "n0": 0, "bound": "two-class"}),
    "abstention": Case({"n": 600, "n0": 50}, image=TIE),
    "radius": Case({"n": 3000, "radius": 0.02}),
    "out of reach": Case({"n": 3000, "radius": 0.3}),
    "exhausted": Case({"n": 400, "radius": 0.05}),
    "tolerance": Case({"n": 3000, "tolerance": 0.02}),
    "deadline": Case({"n": 3000, "deadline": 1.0}, until=600),
    "radius and deadline": Case({"n": 3000, "radius": 0.08, "deadline": 1.0}, until=400),
    "floating pixels": Case({"n": 600}, image=GREY / np.float32(255)),
    "members": Case({"n": 600, "n0": 50}, votes=True),
    "members, same samples": Case({"n": 600, "n0": 0}, votes=True),
    "members, radius": Case({"n": 3000, "radius": 0.03}, votes=True),
    "members, tolerance": Case({"n": 3000, "tolerance": 0.02}, votes=True),
    "members, deadline": Case({"n": 3000, "deadline": 1.0}, votes=True, until=600),
    "plurality": Case({"n": 600, "members": False}, votes=True),
}


def issue(predictor: Predictor, image: Array, settings: dict[str, Any], *, until: int | None, word: str) -> Certificate:
    """An honest certificate, without a clock: sampling ends by itself, or with the word after `until` samples."""
    settings = dict(settings)
    replayed = settings.pop("replayed", None)
    question = Request(image=image, **settings).ask(predictor.card, replayed=replayed)
    procedure, position = question.begin(), 0
    wanted = next(procedure)
    while True:
        answer: Any = word
        if until is None or position + wanted <= until:
            out = np.empty((wanted, *question.image.shape), dtype=np.float32)
            question.draw(position, out)
            answer, position = question.tally.count(scores_of(predictor.engine, question.tally, out)), position + wanted
        try:
            wanted = procedure.send(answer)
        except StopIteration as end:
            return certificate_of(predictor, question, end.value, 0.125)


def honest(case: Case) -> Certificate:
    return issue(case.predictor(), case.image, case.settings | {"seed": 5}, until=case.until, word="deadline")


def is_true(mutant: Certificate, case: Case) -> bool:
    """Whether this is the certificate that its own request gives."""
    settings: dict[str, Any] = {name: getattr(mutant, name) for name in ("n", "n0", "alpha", "bound", "sigma", "seed")}
    settings["replayed"] = mutant.drawn_noise
    settings["members"] = bool(mutant.members)
    if mutant.procedure != "fixed":
        settings[mutant.procedure] = mutant.requested
    if mutant.procedure == "tolerance":
        settings["quantile"] = mutant.quantile
    clocked = mutant.stopped in ("deadline", "interrupted")
    again = issue(
        case.predictor(),
        case.image,
        settings,
        until=mutant.samples_used if clocked else None,
        word=mutant.stopped,
    )
    return alike(mutant, again.to_json())


def alike(mutant: Certificate, honest: dict[str, Any]) -> bool:
    """Whether a certificate claims what an honest one does; it may lack what is optional."""
    document = mutant.to_json()
    kept = {name: value for name, value in honest.items() if name in document or name not in OPTIONAL}
    return bool(leaves(document) == leaves(kept))


def leaves(document: Any) -> Any:
    """A document without what is unproven, its probabilities to nine digits."""
    if isinstance(document, dict):
        return {name: leaves(value) for name, value in document.items() if name not in UNPROVEN}
    if isinstance(document, list | tuple):
        return [leaves(value) for value in document]
    return round(document, 8) if isinstance(document, float) else document


WORDS = {
    "norm": ("linf", "l1", "L2"),
    "method": ("clopper-pearson", "clopper-pearson/votes", "exact"),
    "bound": ("top-class", "two-class", "none"),
    "procedure": (*PROCEDURES, "certify"),
    "domain": ("8-bit", "16-bit", "continuous"),
    "noise": (
        *(f"philox4x64-10/{kind}" for kind in ("lanes", "integer", "integer-16", "continuous")),
        "philox4x32/integer",
        "integer",
    ),
    "stopped": ("complete", "certified", "out of reach", "planned", "exhausted", "deadline", "interrupted", "done"),
    "class_name": ("a", "b", None),
    "label": (0, 1, 2, None),
    "requested": (0.01, 0.02, 9.75, None),
}


def changes(name: str, value: Any) -> Iterator[Any]:
    """Other values for a field: near ones, plausible ones, and some of a wrong kind."""
    yield from WORDS.get(name, ())
    if isinstance(value, bool):
        yield from (not value, int(value), None)
    elif isinstance(value, int):
        yield from (value + 1, max(0, value - 1), 2 * value + 1, 0, -1, 10**30, value + 0.5, str(value), True, None)
    elif isinstance(value, float):
        yield from (value + 1e-6, value - 1e-6, value / 2, 2 * value, 9.75, 0.0, -value, 10**400, str(value), None)
    elif isinstance(value, str):
        yield from ("", value + " ", value.upper(), value[:-1], 7, None)
    elif value is None:
        yield from (0, 0.5, "none", False)
    elif isinstance(value, list):
        yield from (value[:-1], [*value, value[0]], value[::-1], [], None, "many")
        if isinstance(value[0], int):
            yield from ([value[0] - 1, value[1] + 1], [value[0] + 1, value[1] - 1], [0, sum(value)])
    else:
        yield from ({}, None, [value])


ABSENT = object()


def paths(document: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Every field of a document, those of the model and of the members too."""
    for name, value in document.items():
        yield (*path, name), value
        if isinstance(value, dict):
            yield from paths(value, (*path, name))
        if isinstance(value, list) and value and isinstance(value[0], dict):
            for index, one in enumerate(value):
                yield from paths(one, (*path, name, index))


def changed(document: dict[str, Any], *ways: tuple[tuple[Any, ...], Any]) -> dict[str, Any]:
    found = copy.deepcopy(document)
    for path, value in ways:
        place: Any = found
        for step in path[:-1]:
            place = place[step]
        if value is ABSENT:
            del place[path[-1]]
        else:
            place[path[-1]] = value
    return found


def same(one: Any, other: Any) -> bool:
    """1 and 1.0 are one number in JSON; True is none."""
    return bool(one == other) and isinstance(one, bool) == isinstance(other, bool)


def singles(document: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for path, value in paths(document):
        for other in changes(path[-1], value):
            if not same(value, other):
                yield changed(document, (path, other))
        yield changed(document, (path, ABSENT))
    for name in ("comment", "radius_l2", "Radius"):
        yield document | {name: document["radius"]}


def pairs(document: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Two fields at once, each by the changes that forgers like best."""
    favourites = {
        path: [other for other in itertools.islice(changes(path[-1], value), 8) if not same(value, other)][:1]
        for path, value in paths(document)
        if len(path) == 1 and not isinstance(value, dict)
    }
    for (one, first), (other, second) in itertools.combinations(favourites.items(), 2):
        for left, right in zip(first, reversed(second), strict=False):
            yield changed(document, (one, left), (other, right))


def tried(case: Case, documents: Iterator[dict[str, Any]], honest: dict[str, Any]) -> dict[str, int]:
    """How many were refused, how many differ only in what is not proven, and how many are true certificates."""
    predictor, counts = case.predictor(), {"refused": 0, "unproven": 0, "true": 0}
    for document in documents:
        try:
            mutant = Certificate.loads(json.dumps(document))
            confirmed = predictor.verify(mutant, case.image).ok
        except RobustinferError:
            confirmed = False
        if not confirmed:
            counts["refused"] += 1
        elif alike(mutant, honest):
            counts["unproven"] += 1
        else:
            assert is_true(mutant, case), {k: v for k, v in document.items() if honest.get(k) != v}
            counts["true"] += 1
    return counts


LEAST = {singles: 270, pairs: 320}
"""How many changed certificates there are at least in each case: more than 10,000 in all."""


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("kind", [singles, pairs], ids=["one field", "two fields"])
def test_a_changed_certificate_is_refused_or_true(name: str, kind: Any) -> None:
    case = CASES[name]
    document = json.loads(json.dumps(honest(case).to_json()))
    assert case.predictor().verify(Certificate.from_json(document), case.image).ok
    counts = tried(case, kind(document), document)
    sys.stdout.write(f"{name}, {kind.__name__}: {counts}\n")  # shown by pytest -s
    total = sum(counts.values())
    assert total >= LEAST[kind]
    assert counts["refused"] >= 0.9 * total, counts


def test_a_certificate_that_says_two_things_is_refused() -> None:
    """The last of two equal keys is what Python reads; people and other programs may read the first."""
    text = json.dumps(honest(CASES["fixed"]).to_json())
    Certificate.loads(text)
    for name in ("radius", "digest", "seed"):
        with pytest.raises(CertificateError, match="a key appears twice"):
            Certificate.loads(text.replace(f'"{name}": ', f'"{name}": 9.75, "{name}": ', 1))


def test_the_sentence_of_old_certificates_does_not_stand_in_new_ones() -> None:
    """It speaks of every change of the image; certificates of 0.1, which carry it, did not know the 16-bit domain."""
    document = json.loads(json.dumps(honest(CASES["floating pixels"]).to_json()))
    assert document.pop("domain") == "16-bit"
    sentence = json.loads((Path(__file__).parent / "certificates/before-procedure-fixed.json").read_text())["guarantee"]
    with pytest.raises(CertificateError, match="The guarantee of this certificate follows from its other fields"):
        Certificate.from_json(document | {"guarantee": sentence})


# Votes that may differ


@pytest.mark.parametrize("name", ["fixed", "tolerance", "deadline", "members"])
def test_a_moved_vote_lets_nothing_else_pass(name: str) -> None:
    """The first forgery that was found: with one vote moved, radius and bounds used to be compared no longer."""
    case = CASES[name]
    document = json.loads(json.dumps(honest(case).to_json()))
    predictor, (first, second) = case.predictor(), document["counts"]
    for counts in ([first + 1, second - 1], [first - 1, second + 1]):
        moved = document | {"counts": counts}
        for forged in (moved, moved | {"radius": 9.75, "radius_l1": 9.75}, *singles(moved)):
            try:
                mutant = Certificate.loads(json.dumps(forged))
                replay = predictor.verify(mutant, case.image, max_flips=10)
            except RobustinferError:
                continue
            claims_less = mutant.abstained or (mutant.label, mutant.radius) == (document["label"], document["radius"])
            assert claims_less or not replay.ok, replay


@pytest.mark.parametrize("settings", [{"n": 2000}, {"n": 2000, "n0": 0}, {"n": 2000, "bound": "top-class"}], ids=str)
def test_another_machine_is_confirmed_as_far_as_this_one_proves(settings: dict[str, Any]) -> None:
    """A threshold that lies a grey level higher flips votes away from the label, a lower one flips them towards it."""
    here, level = predictor_of(0.5), 1 / 255
    for threshold, proven in ((0.5 + level, True), (0.5 - level, False)):
        there = predictor_of(threshold).certify(GREY, seed=5, **settings)
        assert not here.verify(there, GREY).ok
        replay = here.verify(there, GREY, max_flips=60)
        assert 0 < replay.flips <= 60
        assert replay.ok == proven == (there.radius <= replay.radius), replay
        assert proven or "the votes drawn here prove" in replay.reason
        forged = dataclasses.replace(there, radius=9.75)
        assert not here.verify(forged, GREY, max_flips=60).ok
