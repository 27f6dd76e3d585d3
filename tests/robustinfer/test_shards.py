"""Shards: which part a process certifies, and that nothing is lost or repeated, whatever is killed."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from robustinfer.certificate_file import read_certificates, shard_path
from robustinfer.data import parse_shard
from robustinfer.errors import ArgumentError
from robustinfer.summary import merge, summarize

from ..interrupted import Moment, interrupted
from .test_certificate_file import answers

ROBUST = [sys.executable, "-c", "from robustinfer.cli.main import main; main()"]


@pytest.mark.parametrize(
    ("text", "environment", "shard"),
    [
        ("1/3", {}, (1, 3)),
        (None, {"RANK": "2", "WORLD_SIZE": "5"}, (2, 5)),
        (None, {}, (0, 1)),
        ("0/2", {"RANK": "1"}, (0, 2)),
    ],
)
def test_shard_from_option_or_environment(
    text: str | None, environment: dict[str, str], shard: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert parse_shard(text) == shard


@pytest.mark.parametrize("text", ["3/3", "1", "-1/2", "a/b", "0/0"])
def test_bad_shards_are_refused(text: str) -> None:
    with pytest.raises(ArgumentError, match="Expected a shard"):
        parse_shard(text)


@pytest.fixture
def work(linear_model: Callable[..., Path], tmp_path: Path) -> list[str]:
    """A certification that takes a few seconds: 120 digits."""
    weights = np.random.default_rng(0).normal(size=(10, 64))
    model = linear_model(weights, shape=(1, 8, 8))
    return ["certify", str(model), "--data", "digits", "--limit", "120", "--n", "4000", "--seed", "5", "--json"]


LINE = "robustinfer.certificate_file:_append"


def test_a_killed_process_loses_and_repeats_nothing(work: list[str], tmp_path: Path) -> None:
    whole, killed = tmp_path / "whole.jsonl", tmp_path / "killed.jsonl"
    subprocess.run([*ROBUST, *work, "--out", str(whole)], check=True, capture_output=True)
    for lines, then in ((4, 0), (46, 333)):
        moment = Moment(LINE, lines, then)
        ended = subprocess.run(interrupted(moment, *work, "--out", str(killed)), capture_output=True)
        assert ended.returncode == -signal.SIGKILL, ended.stderr
    assert 50 <= killed.read_bytes().count(b"\n") < 121
    result = subprocess.run([*ROBUST, *work, "--out", str(killed)], check=True, capture_output=True)
    assert answers(killed) == answers(whole)
    assert json.loads(result.stdout)["images"] == 120


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_shards_under_torchrun_with_one_killed(work: list[str], tmp_path: Path) -> None:
    """torchrun starts one process a shard; one is killed and restarted by torchrun, and the whole comes out."""
    whole, out = tmp_path / "whole.jsonl", tmp_path / "parts.jsonl"
    subprocess.run([*ROBUST, *work, "--out", str(whole)], check=True, capture_output=True)
    # Without the two dashes torchrun takes --n for an abbreviation of its own options.
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    launcher += ["--max-restarts", "2", "--"]
    killed = tmp_path / "killed"
    moment = Moment(LINE, 3, rank="1", once=str(killed))
    ended = subprocess.run(
        [*launcher, *interrupted(moment, *work, "--out", str(out))[1:]],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    assert ended.returncode == 0, ended.stderr
    assert killed.exists(), "no shard was killed"
    paths = [shard_path(out, (index, 2)) for index in range(2)]
    header, entries = merge(paths)
    assert [(e.index, e.certificate.counts) for e in entries] == [
        (index, tuple(certificate["counts"])) for index, _, certificate in answers(whole)
    ]
    assert summarize(header, entries).accuracies == summarize(*read_certificates(whole)).accuracies
