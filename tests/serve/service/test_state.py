"""The folder that a launcher and its workers share, as seen by who looks into it only now and then."""

import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from robust.serve.service import state as module
from robust.serve.service.state import State

EVERY = 0.5
OLD, NEW = "Bearer an-old-token", "Bearer a-new-token"


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A clock that stands still unless its `seconds` are changed."""
    clock = SimpleNamespace(seconds=100.0)
    fake = SimpleNamespace(monotonic=lambda: clock.seconds, time=time.time)
    monkeypatch.setattr(module, "time", fake)
    return clock


@pytest.fixture
def launcher(tmp_path: Path) -> State:
    """Somebody else, who looks whenever asked."""
    return State.create(tmp_path / "state", token="an-old-token")


@pytest.fixture
def worker(launcher: State, tmp_path: Path, clock: SimpleNamespace) -> State:
    """Looks at a file at most once in EVERY seconds, and has just done so."""
    worker = State(tmp_path / "state", every=EVERY)
    assert worker.permits(OLD)
    assert not worker.permits(NEW)
    assert not worker.marked("draining")
    return worker


def test_a_change_by_somebody_else_counts_after_the_interval(
    launcher: State, worker: State, clock: SimpleNamespace
) -> None:
    launcher.change_token("a-new-token")
    launcher.mark("draining")
    assert launcher.permits(NEW)
    assert launcher.marked("draining")
    clock.seconds += 0.9 * EVERY
    assert worker.permits(OLD)
    assert not worker.permits(NEW)
    assert not worker.marked("draining")
    clock.seconds += 0.1 * EVERY
    assert worker.permits(NEW)
    assert not worker.permits(OLD)
    assert worker.marked("draining")


def test_a_change_of_ones_own_counts_at_once(worker: State) -> None:
    worker.change_token("a-new-token")
    worker.mark("draining")
    assert worker.permits(NEW)
    assert not worker.permits(OLD)
    assert worker.marked("draining")
    assert not worker.marked("stopping")


@pytest.mark.parametrize("lost", ["token.sha256", "auth"])
def test_what_is_lost_lets_nobody_else_in(worker: State, clock: SimpleNamespace, tmp_path: Path, lost: str) -> None:
    (tmp_path / "state" / lost).unlink()
    clock.seconds += EVERY
    assert worker.permits(OLD) == (lost == "auth")
    for stranger in (None, "", "Bearer", "Bearer ", NEW, "Basic an-old-token"):
        assert not worker.permits(stranger)


def test_an_open_server_that_gets_a_token_asks_for_it(tmp_path: Path, clock: SimpleNamespace) -> None:
    launcher = State.create(tmp_path / "open", token=None)
    worker = State(tmp_path / "open", every=EVERY)
    assert worker.permits(None)
    (tmp_path / "open" / "auth").write_text("token")
    launcher.change_token("a-new-token")
    clock.seconds += EVERY
    assert not worker.permits(None)
    assert worker.permits(NEW)


def test_success_is_noted_at_most_once_in_the_interval(
    launcher: State, worker: State, clock: SimpleNamespace, tmp_path: Path
) -> None:
    assert launcher.seconds_since_success("tiny") == float("inf")
    worker.succeeded("tiny")
    note = tmp_path / "state" / "alive-tiny"
    note.unlink()
    clock.seconds += 0.9 * EVERY
    worker.succeeded("tiny")
    assert not note.exists()
    worker.succeeded("other")  # a model of its own
    assert launcher.seconds_since_success("other") < float("inf")
    clock.seconds += 0.1 * EVERY
    worker.succeeded("tiny")
    assert note.exists()


def test_a_worker_shows_what_it_has_in_hand(launcher: State, worker: State) -> None:
    assert launcher.busy_workers() == {}
    for requests in (3, 2):
        worker.show_busy(requests)
        assert list(launcher.busy_workers().values()) == [requests]
    worker.show_busy(0)
    assert launcher.busy_workers() == {}
