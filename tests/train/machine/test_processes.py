"""Two processes that share the batches reach what one process reaches alone, and end when one of them does."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from robust.train import Recipe, Run, train
from robust.train.machine.processes import Processes
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from robustinfer.errors import ArgumentError, DeviceError

from ...interrupted import Moment, interrupted
from ...waiting import PATIENCE

# Trains as `robust train` does, with a clock that runs at CLOCK times its speed, and counts the checkpoints it entered.
RANK = """
import os, sys, time
from robust.train import Recipe, train
from robust.train.stage.trainer import StageTrainer
from robustinfer.cli.main import leave

clock, speed = time.monotonic, float(os.environ["CLOCK"])
time.monotonic = lambda: speed * clock()
save, saved = StageTrainer.save, []
StageTrainer.save = lambda self: (saved.append(1), save(self))[1]
train(Recipe.load(sys.argv[1]), sys.argv[2], device="cpu")
print(len(saved))
leave(0)
"""

# The second process dies after its third step, before which both have kept the second one in a checkpoint.
SECOND_DIES = Moment("robust.train.stage.trainer:StageTrainer.update", 3, rank="1")


class Pair:
    """Two processes with what torchrun sets, without its launcher: it is slow to start and hides their errors.

    As there, the store is the parent's, on a port that the system gives, so that nobody else can take it in between.
    """

    def __init__(self, *command: str, clocks: tuple[float, float] = (1.0, 1.0)) -> None:
        self.store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(self.store.port)}
        place |= {"TORCHELASTIC_USE_AGENT_STORE": "True", "WORLD_SIZE": "2", "OMP_NUM_THREADS": "1"}
        self.processes = [
            subprocess.Popen(
                [sys.executable, *command],
                env={**os.environ, **place, "RANK": str(rank), "LOCAL_RANK": str(rank), "CLOCK": str(clocks[rank])},
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for rank in range(2)
        ]

    @property
    def codes(self) -> list[int | None]:
        """The exit codes; None while a process runs."""
        return [process.poll() for process in self.processes]

    def finish(self, seconds: float) -> list[tuple[str, str]]:
        """What both printed; if they are still there after so many seconds, they are ended, and the test fails."""
        try:
            return [process.communicate(timeout=seconds) for process in self.processes]
        except subprocess.TimeoutExpired:
            for process in self.processes:
                process.kill()
            printed = [process.communicate() for process in self.processes]
            pytest.fail(f"Still running after {seconds:g} seconds: {printed}")


def losses(run: Run) -> list[float]:
    records = map(json.loads, (run.path / "metrics.jsonl").read_text().splitlines())
    return [record["loss"] for record in records if record["kind"] == "epoch"]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_many_timed_checkpoints(tiny: Recipe, tmp_path: Path) -> None:
    recipe = tiny.replace(checkpoint_seconds=0.01, epochs=30, select="last", refit=False)
    file = tmp_path / "tiny.toml"
    file.write_text(recipe.to_toml())
    pair = Pair("-c", RANK, str(file), str(tmp_path / "two"), clocks=(1.0, 1.7))
    printed = pair.finish(600)
    assert pair.codes == [0, 0], printed
    counts = [int(out) for out, _ in printed]
    assert counts[0] == counts[1] >= 2  # the ends of two stages, and whenever the first clock said so


@pytest.mark.slow
@pytest.mark.representative
@pytest.mark.timeout(600)
def test_when_one_process_is_killed_the_other_ends_with_a_sentence(tiny: Recipe, tmp_path: Path) -> None:
    recipe = tiny.replace(checkpoint_seconds=0, epochs=10_000, select="last")
    file, out = tmp_path / "tiny.toml", tmp_path / "two"
    file.write_text(recipe.to_toml())
    pair = Pair(*interrupted(SECOND_DIES, "train", str(file), "--out", str(out), "--device", "cpu")[1:])
    printed = pair.finish(PATIENCE)
    assert pair.codes == [1, -signal.SIGKILL], printed
    assert "Another process of this training ended" in printed[0][1]
    assert "Traceback" not in printed[0][1]
    assert Run.open(out).recipe == recipe  # what was written can be resumed


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_torchrun_ends_when_one_of_its_processes_is_killed(tiny: Recipe, tmp_path: Path) -> None:
    recipe = tiny.replace(checkpoint_seconds=0, epochs=10_000, select="last")
    file, out = tmp_path / "tiny.toml", tmp_path / "two"
    file.write_text(recipe.to_toml())
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    words = interrupted(SECOND_DIES, "train", str(file), "--out", str(out), "--device", "cpu")[1:]
    torchrun = subprocess.run([*launcher, "--", *words], capture_output=True, text=True)
    assert torchrun.returncode == 1, torchrun.stderr
    assert "SIGKILL" in torchrun.stderr
    assert Run.open(out).recipe == recipe


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("previous", "balance"), [("clean", "sample"), pytest.param("exact", "loss", marks=pytest.mark.representative)]
)
def test_two_gloo_processes_equal_one(tiny: Recipe, tmp_path: Path, previous: str, balance: str) -> None:
    """The first process decides when a checkpoint is written: by its own clock, the second would never write one, and
    the two would wait for each other for good."""
    recipe = tiny.replace(previous=previous, balance=balance, epochs=2, select="last", checkpoint_seconds=1e-6)
    file = tmp_path / "tiny.toml"
    file.write_text(recipe.to_toml())
    pair = Pair("-c", RANK, str(file), str(tmp_path / "two"), clocks=(1.0, 0.0))
    printed = pair.finish(PATIENCE)
    assert pair.codes == [0, 0], printed
    counts = [int(out) for out, _ in printed]
    assert counts[0] == counts[1] >= 14  # two stages of two epochs with three steps each, and the ends of the stages
    two, one = Run.open(tmp_path / "two"), train(recipe, tmp_path / "one", device="cpu")
    assert two.provenance["machine"]["processes"] == 2
    assert losses(two) == pytest.approx(losses(one), rel=1e-3)
    for stage in (1, 2):
        assert two.stages[stage - 1].betas == pytest.approx(one.stages[stage - 1].betas, rel=1e-2)
    image = torch.rand(16, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(two.ensemble()(image), one.ensemble()(image), rtol=0.02, atol=0.02)


def test_processes_share_a_batch_evenly_or_refuse() -> None:
    device = torch.device("cpu")
    shares = [Processes(device, rank, 4).rows(12) for rank in range(4)]
    assert [(share.start, share.stop) for share in shares] == [(0, 3), (3, 6), (6, 9), (9, 12)]
    with pytest.raises(ArgumentError, match="A batch of 10 images cannot be shared evenly by 4 processes"):
        Processes(device, 0, 4).rows(10)


def test_a_device_that_is_not_there_is_refused(tiny: Recipe, tmp_path: Path) -> None:
    with pytest.raises(DeviceError, match="A device is auto, cpu or cuda"):
        train(tiny, tmp_path / "run", device="abacus")
