"""Certificates: their JSON form, their replay, and what happens to those that were tampered with."""

import dataclasses
import json
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from robustinfer import Certificate, Prediction, Predictor
from robustinfer.errors import CertificateError, DigestError, SettingError

IMAGE = np.full((1, 2, 2), 150, dtype=np.uint8)
SETTINGS: dict[str, dict[str, Any]] = {
    "fixed": {"n": 600, "n0": 50},
    "top-class": {"n": 600, "n0": 50, "bound": "top-class"},
    "same-sample": {"n": 600, "n0": 0},
    "radius": {"n": 3000, "radius": 0.02},
    "out of reach": {"n": 3000, "radius": 0.3},
    "tolerance": {"n": 3000, "tolerance": 0.02},
    "16-bit": {"n": 600, "domain": "16-bit"},
}


@pytest.fixture
def predictor(predictor_of: Callable[..., Predictor], half_space: Callable[..., Any]) -> Any:
    return predictor_of(half_space)


@pytest.fixture
def certificate(predictor: Any) -> Any:
    return predictor.certify(IMAGE, n=600, n0=50, seed=5)


@pytest.mark.parametrize("procedure", SETTINGS)
@pytest.mark.parametrize("image", [IMAGE, np.full((1, 2, 2), 127, np.uint8), IMAGE / np.float32(255)])
def test_a_certificate_survives_json_and_replays(predictor: Any, procedure: Any, image: Any) -> None:
    certificate = predictor.certify(image, seed=5, **SETTINGS[procedure])
    again = Certificate.loads(json.dumps(certificate.to_json()))
    assert again == certificate
    replay = predictor.verify(again, image)
    assert (replay.ok, replay.flips, replay.label, replay.radius) == (True, 0, certificate.label, certificate.radius)
    assert replay.counts == certificate.counts
    assert json.loads(json.dumps(replay.to_json()))["same_model"] is True


@pytest.mark.parametrize("procedure", ["radius", "tolerance", "fixed"])
def test_a_certificate_names_the_edition_of_its_rules(predictor: Any, procedure: Any) -> None:
    """And is replayed by it: by the first edition, which certificates without the field have, it is another one."""
    certificate = predictor.certify(IMAGE, seed=5, **SETTINGS[procedure])
    ruled = procedure != "fixed"
    assert certificate.rules == (2 if ruled else None)
    assert certificate.quantile is None
    assert ("rules" in certificate.to_json()) == ruled
    if ruled:
        assert not predictor.verify(dataclasses.replace(certificate, rules=None, quantile=None), IMAGE).ok
    with pytest.raises(CertificateError, match=r"replays the rules 1 and 2; .* rules 3: use a newer version"):
        predictor.verify(dataclasses.replace(certificate, rules=3), IMAGE)


def test_a_quantile_is_recorded_and_replayed(predictor: Any) -> None:
    certificate = predictor.certify(IMAGE, seed=5, n=3000, tolerance=0.02, quantile=0.95)
    assert certificate.quantile == 0.95
    less_sure = predictor.certify(IMAGE, seed=5, n=3000, tolerance=0.02, quantile=0.5)
    assert certificate.samples_used > less_sure.samples_used
    on_average = predictor.certify(IMAGE, seed=5, n=3000, tolerance=0.02)
    assert (on_average.quantile, "quantile" in on_average.to_json()) == (None, False)
    assert on_average.samples_used not in (certificate.samples_used, less_sure.samples_used)
    for one in (certificate, less_sure, on_average):
        assert predictor.verify(one, IMAGE).ok
    assert not predictor.verify(dataclasses.replace(certificate, quantile=None), IMAGE).ok
    with pytest.raises(SettingError, match="quantile needs a tolerance"):
        predictor.certify(IMAGE, radius=0.1, quantile=0.9)


def test_a_certificate_says_what_it_guarantees(certificate: Any) -> None:
    document = certificate.to_json()
    assert "wrong with probability at most alpha" in document["guarantee"]
    assert (document["norm"], document["procedure"], document["bound"]) == ("l2", "fixed", "two-class")
    assert (document["noise"], document["domain"]) == ("philox4x64-10/lanes", "8-bit")
    assert document["samples_used"] == 650


def test_replay_does_not_depend_on_the_batch(
    predictor_of: Callable[..., Predictor], half_space: Callable[..., Any], certificate: Any
) -> None:
    assert predictor_of(half_space, batch=7).verify(certificate, IMAGE).ok


def test_a_prediction_survives_json(predictor: Any) -> None:
    prediction = predictor.predict(IMAGE, seed=5)
    assert Prediction.from_json(json.loads(json.dumps(prediction.to_json()))) == prediction
    assert (prediction.label, prediction.class_name, prediction.stopped) == (1, "b", "decided")


def moved(counts: Any) -> Any:
    return (counts[0] - 7, counts[1] + 7)


TAMPERED: dict[str, tuple[Callable[[Any], Any], str]] = {
    "counts": (lambda c: {"counts": moved(c.counts)}, "7 of 600 votes came out differently"),
    "radius": (lambda c: {"radius": c.radius + 0.001}, "prove radius = "),
    "label": (lambda c: {"label": 0}, "prove label = 1, the certificate says 0"),
    "class name": (lambda c: {"class_name": "a"}, "prove class_name = 'b'"),
    "alpha": (lambda c: {"alpha": c.alpha / 10}, "prove radius = "),
    "seed": (lambda c: {"seed": c.seed + 1}, "votes came out differently"),
    "p_lower": (lambda c: {"p_lower": c.p_lower + 0.01}, "prove p_lower"),
    "p_upper": (lambda c: {"p_upper_runner_up": c.p_upper_runner_up - 0.01}, "prove p_upper_runner_up"),
    "stopped": (lambda c: {"stopped": "certified"}, "prove stopped = 'complete'"),
    "looks": (lambda c: {"looks": 9}, "prove looks = 1"),
    "selection": (lambda c: {"n0": 0, "samples_used": 600}, "votes came out differently|prove radius"),
    "invalid": (lambda c: {"invalid": 5, "counts": (c.counts[0] - 5, c.counts[1])}, "votes came out differently"),
}


@pytest.mark.parametrize("field", TAMPERED)
def test_a_tampered_certificate_is_seen(predictor: Any, certificate: Any, field: Any) -> None:
    change, reason = TAMPERED[field]
    forged = dataclasses.replace(certificate, **change(certificate))
    replay = predictor.verify(forged, IMAGE)
    assert not replay.ok
    assert re.search(reason, replay.reason)


def test_a_smaller_radius_is_not_the_certificate_either(predictor: Any, certificate: Any) -> None:
    replay = predictor.verify(dataclasses.replace(certificate, radius=certificate.radius - 0.01), IMAGE)
    assert (replay.ok, replay.flips) == (False, 0)


def test_another_image_is_refused(predictor: Any, certificate: Any) -> None:
    other = IMAGE.copy()
    other[0, 1, 1] += 1
    with pytest.raises(CertificateError, match="not the image of the certificate"):
        predictor.verify(certificate, other)
    with pytest.raises(CertificateError, match="not the image of the certificate"):
        predictor.verify(dataclasses.replace(certificate, image="sha256:0"), IMAGE)


def test_samples_out_of_nowhere_are_refused(predictor: Any, certificate: Any) -> None:
    forged = dataclasses.replace(certificate, counts=(0, 10**12), samples_used=10**12 + 50)
    with pytest.raises(CertificateError, match="claims 1000000000050 samples, more than"):
        predictor.verify(forged, IMAGE)


def test_another_model_is_refused_or_counted_in_flips(
    predictor: Any, predictor_of: Callable[..., Predictor], half_space: Callable[..., Any], certificate: Any
) -> None:
    """Another backend may flip near-ties: here a boundary moved by half a grey level."""
    other = Predictor(predictor_of(half_space).engine, predictor.card, digest="sha256:other")
    with pytest.raises(DigestError, match="use that model"):
        other.verify(certificate, IMAGE)
    replay = other.verify(certificate, IMAGE, other_model=True)
    assert (replay.ok, replay.same_model) == (True, False)
    shifted = Predictor(
        predictor_of(lambda x: half_space(x - np.float32(1 / 255))).engine, predictor.card, digest="sha256:other"
    )
    replay = shifted.verify(certificate, IMAGE, other_model=True)
    assert not replay.ok
    assert 1 <= replay.flips < 30


def test_a_flip_that_changes_the_course_of_a_decision_is_still_counted(
    predictor: Any, predictor_of: Callable[..., Predictor], half_space: Callable[..., Any]
) -> None:
    """The other model would have wanted more samples, or fewer: it gets exactly those of the certificate."""
    certificate = predictor.certify(IMAGE, seed=5, n=3000, radius=0.02)
    for shift in (-20, 20):
        other = predictor_of(lambda x, s=shift: half_space(x + np.float32(s / 255)))
        replay = other.verify(certificate, IMAGE)
        assert sum(replay.counts) == sum(certificate.counts)
        assert replay.flips > 0


@pytest.mark.parametrize(
    ("change", "error", "sentence"),
    [
        ({"counts": [1, 2]}, CertificateError, "votes add up to its samples"),
        ({"radius": float("inf")}, CertificateError, "radius is finite"),
        ({"radius": float("nan")}, CertificateError, "radius is finite"),
        ({"radius": -0.1}, CertificateError, "radius is finite and not negative"),
        ({"label": None}, CertificateError, "or it abstains with radius 0"),
        ({"model": "digits"}, CertificateError, "malformed"),
        ({"counts": "many"}, CertificateError, "malformed"),
        ({"counts": None}, CertificateError, "malformed"),
        ({"counts": [300.5, 299.5]}, CertificateError, r"counts\[0\] is a whole number, found 300.5"),
        ({"n": "many"}, CertificateError, "n is a whole number, found 'many'"),
        ({"seed": -1}, CertificateError, "seed is a whole number, found -1"),
        ({"alpha": None}, CertificateError, "alpha is a number, found None"),
    ],
)
def test_certificates_that_cannot_be(certificate: Any, change: Any, error: Any, sentence: Any) -> None:
    with pytest.raises(error, match=sentence):
        Certificate.loads(json.dumps(certificate.to_json() | change))


def test_documents_that_are_no_certificates(certificate: Any) -> None:
    with pytest.raises(CertificateError, match="not a JSON document"):
        Certificate.loads("{")
    with pytest.raises(CertificateError, match="is a JSON object; found list"):
        Certificate.loads("[]")
    document = certificate.to_json()
    del document["seed"], document["alpha"]
    with pytest.raises(CertificateError, match="alpha, seed missing"):
        Certificate.from_json(document)


@pytest.mark.parametrize(
    "change",
    [{"noise": "philox4x64-10/uniform"}, {"seed": -1}, {"procedure": "radius", "requested": -1.0}, {"n": "many"}],
)
def test_settings_that_cannot_be_replayed(predictor: Any, certificate: Any, change: Any) -> None:
    with pytest.raises((SettingError, CertificateError), match=r"Expected|found"):
        predictor.verify(Certificate.from_json(certificate.to_json() | change), IMAGE)


@pytest.mark.parametrize(
    "change",
    [{"radius": 10**400}, {"n": 10**30}, {"seed": 2**64}, {"samples_used": 2**70}, {"alpha": float("nan")},
     {"sigma": float("inf")}, {"requested": 10**400}, {"p_upper_runner_up": "0.1"}, {"counts": [10**30, 1]},
     {"seconds": 10**5000}, {"seed_origin": "an oracle"}, {"seed_origin": ["caller"]}],
    ids=lambda change: next(iter(change)),
)  # fmt: skip
def test_numbers_that_no_computer_counts(certificate: Any, change: Any) -> None:
    with pytest.raises(CertificateError) as refusal:
        Certificate.from_json(certificate.to_json() | change)
    assert len(str(refusal.value)) < 400


def test_only_a_files_name_and_a_signature_may_stand_beside_the_fields(certificate: Certificate) -> None:
    document = certificate.to_json()
    assert Certificate.from_json(document | {"file": "five.png", "signature": {}}) == certificate
    with pytest.raises(CertificateError, match="fields that cannot be checked: comment, mode"):
        Certificate.from_json(document | {"mode": "fixed", "comment": "proven"})
    with pytest.raises(CertificateError, match="guarantee of this certificate follows from its other fields"):
        Certificate.from_json(document | {"guarantee": "never wrong"})
