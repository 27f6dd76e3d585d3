"""The settings of a request: every way in knows the same ones, and no number can hang or break it."""

import dataclasses
import inspect
import sys
import threading
import types
import typing
from collections.abc import Callable
from typing import Any
from unittest import mock

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

from robustinfer import Card, InputSpec, Predictor, Request, RobustinferError
from robustinfer.certificate import Certificate, Prediction
from robustinfer.errors import AlphaError, SampleSizeError, SettingError, SigmaError
from robustinfer.questions import Question
from robustinfer.settings import MAX_N, SETTINGS, CertifySettings, PredictSettings, check


def of(mode: Any) -> Any:
    return {name for name, setting in SETTINGS.items() if mode in setting.modes}


def kind_of(annotation: Any) -> Any:
    """The type or the words of an annotation like `int | None` or `Literal[...] | None`."""
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        (annotation,) = [part for part in typing.get_args(annotation) if part is not type(None)]
    return typing.get_args(annotation) if typing.get_origin(annotation) is typing.Literal else annotation


def test_a_request_has_exactly_these_settings() -> None:
    hints = typing.get_type_hints(Request)
    names = [field.name for field in dataclasses.fields(Request)]
    assert names == ["image", "mode", *SETTINGS]
    assert {name: kind_of(hints[name]) for name in SETTINGS} == {name: one.kind for name, one in SETTINGS.items()}


@pytest.mark.parametrize("mode", ["certify", "predict"])
def test_the_predictor_has_exactly_these_arguments(mode: Any) -> None:
    method = getattr(Predictor, mode)
    parameters, hints = inspect.signature(method).parameters, typing.get_type_hints(method)
    assert set(parameters) - {"self", "image", "stop", "progress"} == of(mode)
    for name in of(mode):
        assert kind_of(hints[name]) == SETTINGS[name].kind
        assert parameters[name].default == SETTINGS[name].defaults.get(mode)


@pytest.mark.parametrize(("mode", "of_client"), [("certify", CertifySettings), ("predict", PredictSettings)])
def test_the_clients_take_exactly_these_settings(mode: Any, of_client: Any) -> None:
    hints = typing.get_type_hints(of_client)
    assert {name: kind_of(hint) for name, hint in hints.items()} == {name: SETTINGS[name].kind for name in of(mode)}
    many = typing.get_type_hints(Predictor.certify_many)["settings"]
    assert set(typing.get_type_hints(typing.get_args(many)[0])) == of("certify") - {"seed"}


@pytest.mark.parametrize("mode", ["certify", "predict"])
def test_the_command_line_has_exactly_these_options(mode: Any) -> None:
    import typer

    from robustinfer.cli.main import app

    options = {option.name: option for option in typer.main.get_command(app).commands[mode].params}  # type: ignore[attr-defined]
    other = {"model", "card", "images", "device", "threads", "batch", "json", "plain", "url", "token"}
    other |= {"data", "split", "skip_unreadable", "out", "every", "limit", "shard", "plot"}
    assert set(options) - other == of(mode)
    for name in of(mode):
        assert options[name].help == SETTINGS[name].help
        assert options[name].default == SETTINGS[name].defaults.get(mode)


def test_values_become_their_own_types() -> None:
    checked = check("certify", {"n": np.int32(500), "alpha": np.float32(0.25), "deadline": 2, "members": False})
    assert [(type(checked[name]), checked[name]) for name in ("n", "alpha", "deadline", "members")] == [
        (int, 500), (float, 0.25), (float, 2.0), (bool, False)
    ]  # fmt: skip
    assert checked["seed"] is None
    assert check("predict", {})["n"] == 1000


WRONG: dict[str, tuple[Any, ...]] = {
    "alpha too small": ({"alpha": 1e-323}, AlphaError, "a number from 1e-09 to 0.5 for alpha, found 1e-323"),
    "alpha too large": ({"alpha": 0.9}, AlphaError, "found 0.9"),
    "sigma too small": (
        {"sigma": 1e-7},
        SigmaError,
        r"0.0001 to 16 for sigma \(pixels are in \[0,1\]\)",
    ),
    "n too large": ({"n": 10**30}, SampleSizeError, "a whole number from 1 to 1,000,000,000 for n"),
    "n endless": ({"n": 10**5000}, SampleSizeError, "found a number of thousands of digits"),
    "a real number too large for one": ({"radius": 10**400}, SettingError, "for radius, found 1000"),
    "deadline": ({"deadline": 1e9}, SettingError, "a number above 0 and at most 86,400 for deadline"),
    "a truth value as a number": ({"n": True}, SampleSizeError, "found True"),
    "a number as a truth value": ({"members": 1}, SettingError, "true or false for members, found 1"),
    "seed": ({"seed": 2**64}, SettingError, r"a whole number from 0 to 2\^64 - 1 for seed"),
}


@pytest.mark.parametrize("case", WRONG)
def test_values_outside_the_limits(case: Any) -> None:
    values, error, sentence = WRONG[case]
    with pytest.raises(error, match=sentence):
        check("certify", values)


def test_settings_of_another_mode() -> None:
    with pytest.raises(SettingError, match="radius belongs to the mode certify: leave it out to predict"):
        check("predict", {"radius": 0.5})
    with pytest.raises(SettingError, match="certify or predict for mode, found 'guess'"):
        check("guess", {})


NUMBERS = st.one_of(
    st.none(),
    st.sampled_from(
        [0, 1, -1, 0.0, 5e-324, 1e-323, 1e-12, 1e-9, 1e-7, 1e-6, 1e-4, 0.001, 0.5, 1.0, 16, 17.0, 100, 1e3, 86_400,
         MAX_N, MAX_N + 1, 2**31, 2**53, 2**63, 2**64 - 1, 2**64, 10**30, 10**400, sys.float_info.max,
         float("inf"), float("-inf"), float("nan"), True]
    ),
    st.floats(),
    st.integers(),
)  # fmt: skip
EXTREMES = {name: NUMBERS for name, setting in SETTINGS.items() if setting.kind in (int, float)}


class Bright:
    """The class is whether the first pixel is bright; alone, so that hypothesis can make one quickly."""

    name, device, batch = "bright", "cpu", 64

    def scores(self, images: Any) -> Any:
        margin = images.reshape(len(images), -1)[:, :1] - np.float32(0.5)
        return np.concatenate([-margin, margin], axis=1)


@settings(deadline=None, max_examples=300)
@given(st.sampled_from(["certify", "predict"]), st.fixed_dictionaries({}, optional=EXTREMES))
def test_every_number_gets_an_answer_or_a_sentence_quickly(mode: Any, numbers: Any) -> None:
    predictor = Predictor(Bright(), Card(classes=("a", "b"), input=InputSpec(1, 2, 2)), digest="sha256:bright")
    numbers = {name: value for name, value in numbers.items() if name in of(mode)}
    stopped = threading.Event()
    stopped.set()  # all checks and the start of the procedure, without the sampling
    with mock.patch.object(Question, "_largest_radius", autospec=True, side_effect=Question._largest_radius) as search:
        try:
            answer = getattr(predictor, mode)(np.full((1, 2, 2), 200, dtype=np.uint8), **numbers, stop=stopped)
        except RobustinferError as error:
            answer = error
    assert isinstance(answer, Certificate | Prediction) or len(str(answer)) < 400
    assert search.call_count < 40  # quickly, whatever the processor does besides


def test_the_least_sample_size_is_found_at_once_however_large(
    predictor_of: Callable[..., Predictor], half_space: Callable[..., Any]
) -> None:
    """Sigma so small that only many samples prove the smallest radius there is; the advice takes a bisection."""
    predictor = predictor_of(half_space, sigma=1e-4)
    bright = np.full((1, 2, 2), 255, np.uint8)
    with pytest.raises(SampleSizeError, match="use n >= ") as refusal:
        predictor.certify(bright, n=1, alpha=1e-9)
    least = int(str(refusal.value).partition("n >= ")[2].partition(",")[0])
    assert predictor.certify(bright, n=least, alpha=1e-9, seed=1).label == 1


def test_where_no_sample_size_is_enough_the_sentence_says_so(
    predictor_of: Callable[..., Predictor], half_space: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    from robustinfer import requests

    monkeypatch.setattr(requests, "total_variation", lambda *_: 0.6)  # noise too far from the theorem's
    with pytest.raises(SampleSizeError, match=r"no n does at sigma = 0\.25"):
        predictor_of(half_space).certify(np.full((1, 2, 2), 255, np.uint8))
