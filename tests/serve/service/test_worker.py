"""What a worker does with requests that arrive together, without TorchServe."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from robust.serve.service import decoding, desk
from robust.serve.service import worker as module
from robust.serve.service.decoding import Decoder
from robust.serve.service.limits import Limits
from robust.serve.service.state import State
from robust.serve.service.worker import Answer, Incoming, Worker

from robustinfer import Certificate, Predictor
from robustinfer.errors import EngineError, SignatureError
from robustinfer.signing import PrivateKey, check_answer

from ..models import brightness_model
from .test_reading import picture

Array = np.ndarray[Any, Any]
OPEN = State(None)
KEY = PrivateKey.generate()


def worker(predictor: Predictor, state: State = OPEN, **limits: Any) -> Worker:
    return Worker(predictor, name="tiny", limits=Limits(**{"allow_seeds": True, **limits}), state=state)


def question(image: Array, **settings: Any) -> Incoming:
    return Incoming({"body": json.dumps({"image": image.tolist(), **settings}).encode()}, request_id="r-1")


def error(answer: Answer) -> str:
    return str(json.loads(answer.body)["error"]["code"])


def test_neighbours_do_not_hurt_each_other(predictor: Predictor, image: Array) -> None:
    good = [question(image, n=1000 * k, seed=k) for k in (1, 2, 3)]
    bad = [question(image, n=-5), question(image[:3], n=1000), Incoming({"body": b"\0"}), question(image, n=1)]
    batch = [good[0], bad[0], good[1], bad[1], bad[2], good[2], bad[3]]
    answers = worker(predictor).answer(batch)
    assert [int(answer.status) for answer in answers] == [200, 422, 200, 422, 415, 200, 422]
    for place, k in ((0, 1), (2, 2), (5, 3)):
        assert json.loads(answers[place].body)["counts"] == list(predictor.certify(image, n=1000 * k, seed=k).counts)


@pytest.mark.parametrize(
    "settings",
    [{"seed": 2**64}, {"seed": -1}, {"mode": "predict", "radius": 0.1}, {"sigma": 1e-7}, {"radius": 1e-300},
     {"tolerance": 0.1, "deadline": 1}, {"members": True}],
    ids=str,
)  # fmt: skip
def test_settings_that_cannot_be_used(predictor: Predictor, image: Array, settings: dict[str, Any]) -> None:
    (answer,) = worker(predictor).answer([question(image, **settings)])
    assert (int(answer.status), error(answer)) == (422, "bad_setting")


def test_seeds_of_clients_are_refused_unless_they_are_allowed(predictor: Predictor, image: Array) -> None:
    server = worker(predictor, allow_seeds=False)
    assert Limits().allow_seeds is False
    (answer,) = server.answer([question(image, n=500, seed=7)])
    assert (int(answer.status), error(answer)) == (422, "limit_seed")
    (answer,) = server.answer([question(image, n=500)])
    assert json.loads(answer.body)["seed_origin"] == "runtime"
    (answer,) = worker(predictor).answer([question(image, n=500, seed=7)])
    assert json.loads(answer.body)["seed_origin"] == "caller"


def test_a_server_can_answer_in_one_domain_only(predictor: Predictor, image: Array) -> None:
    """Whatever the pixels are: grey levels then get the classifier of the floats, and floats the words of a refusal."""
    floats = (image / 255).astype(np.float32)
    fine = worker(predictor, domain="16-bit")
    answers = fine.answer([question(one, n=500, seed=3) for one in (image, floats)])
    assert [json.loads(answer.body)["domain"] for answer in answers] == ["16-bit", "16-bit"]
    (answer,) = fine.answer([question(image, n=500, domain="8-bit")])
    assert (int(answer.status), error(answer)) == (422, "limit_domain")
    (answer,) = worker(predictor, domain="8-bit").answer([question(floats, n=500)])
    assert int(answer.status) == 422
    assert "8-bit domain is that of uint8 images" in answer.body
    (answer,) = worker(predictor).answer([question(image, n=500, domain="16-bit")])
    assert json.loads(answer.body)["domain"] == "16-bit"


def test_an_engine_that_fails_on_one_request_fails_that_one_only(predictor: Predictor, image: Array) -> None:
    class Moody:
        """An engine that cannot stand dark images."""

        def __getattr__(self, name: str) -> Any:
            return getattr(predictor.engine, name)

        def scores(self, images: Any) -> Any:
            if images.mean(axis=(1, 2, 3)).min() < 0.3:
                raise EngineError("secret path /x/y")
            return predictor.engine.scores(images)

    moody = Predictor(Moody(), predictor.card)
    dark = np.full_like(image, 9)
    answers = worker(moody).answer([question(one, n=500, seed=1) for one in (image, dark, image)])
    assert [int(answer.status) for answer in answers] == [200, 500, 200]
    assert error(answers[1]) == "engine_failed"
    assert "secret" not in answers[1].body


def test_a_deadline_beside_a_long_request_and_order_is_kept(predictor: Predictor, image: Array) -> None:
    """Who is served first is the scheduler's business, and tested there."""
    questions = [question(image, n=20_000, seed=4), question(image, deadline=3600.0, n=2000, seed=5)]
    documents = [json.loads(answer.body) for answer in worker(predictor, max_deadline=3600.0).answer(questions)]
    assert [(document["seed"], document["stopped"]) for document in documents] == [(4, "complete"), (5, "exhausted")]


def test_work_that_would_take_too_long_is_refused_with_what_would_do(predictor: Predictor, image: Array) -> None:
    slow = worker(predictor, max_seconds=1e-5)
    slow.warm_up()
    (answer,) = slow.answer([question(image, n=100_000)])
    assert (int(answer.status), error(answer)) == (422, "limit_seconds")
    (kept,) = slow.answer([question(image, n=100_000, deadline=0.05)])
    assert int(kept.status) == 200


def test_without_n_the_default_stays_within_the_limit(predictor: Predictor, image: Array) -> None:
    (answer,) = worker(predictor, max_n=700).answer([question(image, mode="predict")])
    assert json.loads(answer.body)["n"] == 700


def test_with_a_key_every_certificate_is_signed(predictor: Predictor, image: Array, tmp_path: Path) -> None:
    state = State.create(tmp_path / "state", token=None, key=KEY)
    assert (tmp_path / "state" / "sign.key").stat().st_mode & 0o777 == 0o600
    signing = Worker(predictor, name="tiny", limits=Limits(), state=state, key=state.signing_key())
    tensor = {"name": "image", "shape": [2, 1, 8, 8], "datatype": "UINT8", "data": [*image.reshape(-1).tolist()] * 2}
    infer = {"inputs": [tensor], "parameters": {"n": 500}}
    batch = [
        question(image, n=500),
        question(image, n=500, mode="predict"),
        Incoming({"body": json.dumps(infer).encode()}),
    ]
    plain, predicted, protocol = [json.loads(answer.body) for answer in signing.answer(batch)]
    assert "signature" not in predicted
    texts = next(output for output in protocol["outputs"] if output["name"] == "certificate")["data"]
    for document in (plain, *map(json.loads, texts)):
        check_answer(document, KEY.public)
        assert Certificate.from_json(document).samples_used > 500
        with pytest.raises(SignatureError, match="changed after signing"):
            check_answer(document | {"radius": 9.75}, KEY.public)
    assert signing.metadata()["signed_by"] == KEY.public.id
    assert worker(predictor).metadata()["signed_by"] is None


def test_a_certificate_that_cannot_be_signed_is_not_sent(predictor: Predictor, image: Array, tmp_path: Path) -> None:
    class Lost(PrivateKey):
        """A key that fails."""

        def envelope(self, statement: Any) -> Any:
            raise SignatureError("secret")

    signing = Worker(predictor, name="tiny", limits=Limits(), state=OPEN, key=Lost.generate())
    failed, fine = signing.answer([question(image, n=500), question(image, n=500, mode="predict")])
    assert (int(failed.status), int(fine.status)) == (500, 200)
    assert not failed.results
    assert "secret" not in failed.body
    with pytest.raises(SignatureError, match="Cannot read"):
        State.create(tmp_path / "state", token=None).signing_key()


def test_token(predictor: Predictor, image: Array, tmp_path: Path) -> None:
    guarded = worker(predictor, State.create(tmp_path / "state", token="right"))
    body = question(image, n=500).data
    for header, status in (
        ("Bearer right", 200),
        ("bearer right", 200),
        ("Bearer wrong", 401),
        ("right", 401),
        ("", 401),
    ):
        (answer,) = guarded.answer([Incoming(body, {"authorization": header})])
        assert int(answer.status) == status, header
    (answer,) = guarded.answer([Incoming({"mode": b"health"})])
    assert json.loads(answer.body)["ready"] is True
    assert "right" not in "".join(path.read_text() for path in (tmp_path / "state").iterdir())


def test_drain_then_stop(predictor: Predictor, image: Array, tmp_path: Path) -> None:
    state = State.create(tmp_path / "state", token=None)
    draining = worker(predictor, state)
    state.mark("draining")
    health, asked = draining.answer([Incoming({"mode": b"health"}), question(image, n=500)])
    assert (int(health.status), error(health), int(asked.status)) == (503, "draining", 200)
    assert health.headers == {"Retry-After": "1"}
    state.mark("stopping")
    (late,) = draining.answer([question(image, n=500)])
    assert (int(late.status), error(late)) == (503, "stopping")
    assert state.busy_workers() == {}
    with state.busy():
        assert len(state.busy_workers()) == 1


def test_health_fails_when_predictions_do(predictor: Predictor) -> None:
    class Broken:
        """A predictor whose engine has gone."""

        def __getattr__(self, name: str) -> Any:
            return getattr(predictor, name)

        def certify(self, *_: Any, **__: Any) -> Any:
            raise EngineError("gone")

    (answer,) = worker(Broken()).answer([Incoming({"mode": b"health"})])  # type: ignore[arg-type]
    assert (int(answer.status), error(answer)) == (503, "not_ready")


@pytest.mark.parametrize(
    ("incoming", "expected"),
    [
        (Incoming({"body": b""}, {"content-length": "0"}), "metadata"),
        (Incoming({"mode": b"metadata", "body": b""}), "metadata"),
        (Incoming({"body": b"x"}, {"url_path": "health"}), None),  # a header that any client can send
        (Incoming({}, {"content-type": "application/x-www-form-urlencoded"}), None),
        (Incoming({"body": b"x"}), None),
        (Incoming({"mode": b"\xff"}), None),
    ],
)
def test_questions_without_an_image(incoming: Incoming, expected: str | None) -> None:
    assert incoming.endpoint == expected


def test_open_protocol_errors_are_texts(predictor: Predictor, tmp_path: Path) -> None:
    tensor = {"name": "image", "shape": [1, 8, 8], "datatype": "UINT8", "data": [9] * 64}
    body = json.dumps({"inputs": [tensor], "parameters": {"n": 2}}).encode()
    (answer,) = worker(predictor).answer([Incoming({"body": body})])
    assert int(answer.status) == 422
    assert "n >=" in json.loads(answer.body)["error"]
    # The same form for a body that cannot be read, and for one that nobody looked at.
    broken = Incoming({"body": body[:-1]})
    (answer,) = worker(predictor).answer([broken])
    assert "not a JSON document" in json.loads(answer.body)["error"]
    (answer,) = worker(predictor, State(tmp_path)).answer([broken])
    assert json.loads(answer.body)["error"].startswith("Send the header")


def test_large_bodies_have_a_time_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three large pictures in one batch: one takes too long, the others have no time left, and a small one is read."""
    clock = SimpleNamespace(now=100.0)
    for timed in (module, desk, decoding):
        monkeypatch.setattr(timed, "time", SimpleNamespace(monotonic=lambda: clock.now, perf_counter=lambda: clock.now))

    def too_long(decoder: Decoder, content: bytes, end: float) -> Array:
        clock.now = end + 0.01
        raise TimeoutError

    monkeypatch.setattr(Decoder, "_ask", too_long)
    tiny = brightness_model(tmp_path / "resized.onnx", resize="bilinear")
    server = worker(Predictor.load(tiny, threads=1), max_reading=1.0)
    large = Incoming({"mode": b"predict", "body": picture("PNG", (5000, 5000))})
    small = Incoming({"mode": b"predict", "body": picture("PNG", (80, 80))})
    long = question(np.full((100, 100), 0.123456789), n=500)
    assert long.size > 1 << 16
    answers = server.answer([large, large, long, small])
    assert [int(answer.status) for answer in answers] == [422, 503, 503, 200]
    assert [error(answer) for answer in answers[:3]] == ["limit_reading", "busy_reading", "busy_reading"]
    # Without company, the long one is read, and refused for what it is.
    assert [int(answer.status) for answer in server.answer([long])] == [422]


def test_a_field_that_came_twice_is_refused(predictor: Predictor, image: Array) -> None:
    twice = Incoming(question(image, n=500).data, repeated=("image",))
    (answer,) = worker(predictor).answer([twice])
    assert (int(answer.status), error(answer)) == (400, "repeated_field")


def test_half_a_character_can_be_echoed(predictor: Predictor) -> None:
    """JSON can hold half of a surrogate pair, UTF-8 cannot: encoding the answer would fail, for the whole batch."""
    tensor = {"name": "image", "shape": [1, 8, 8], "datatype": "UINT8", "data": [9] * 64}
    body = json.dumps({"id": "\ud800", "inputs": [tensor], "parameters": {"n": 500}}).encode()
    strange = Incoming({"body": b'{"image": [[9]], "\\ud800": 1}'})
    answers = worker(predictor).answer([Incoming({"body": body}), strange])
    assert [int(answer.status) for answer in answers] == [200, 400]
    assert all(answer.body.isascii() for answer in answers)
    assert json.loads(answers[0].body)["id"] == "\ud800"


def test_two_images_never_share_their_noise(predictor: Predictor) -> None:
    tensor = {"name": "image", "shape": [2, 1, 8, 8], "datatype": "UINT8", "data": [9] * 128}
    body = json.dumps({"inputs": [tensor], "parameters": {"n": 500, "seed": 1}}).encode()
    (answer,) = worker(predictor).answer([Incoming({"body": body})])
    assert int(answer.status) == 422
    body = json.dumps({"inputs": [tensor], "parameters": {"n": 500}}).encode()
    (answer,) = worker(predictor).answer([Incoming({"body": body})])
    assert len({result.seed for result in answer.results}) == 2
