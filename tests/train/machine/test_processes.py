"""Two processes that share the batches reach what one process reaches alone."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from robust.train import Recipe, Run, train
from robust.train.machine.processes import Processes

from robustinfer.errors import DeviceError, SettingError


def losses(run: Run) -> list[float]:
    records = map(json.loads, (run.path / "metrics.jsonl").read_text().splitlines())
    return [record["loss"] for record in records if record["kind"] == "epoch"]


@pytest.mark.slow
@pytest.mark.representative
@pytest.mark.timeout(900)
@pytest.mark.parametrize("previous", ["clean", "exact"])
def test_two_gloo_processes_equal_one(tiny: Recipe, tmp_path: Path, previous: str) -> None:
    recipe = tiny.replace(previous=previous, epochs=2, select="last")
    file = tmp_path / "tiny.toml"
    file.write_text(recipe.to_toml())
    command = [
        sys.executable,
        "-m",
        "robustinfer",
        "train",
        str(file),
        "--out",
        str(tmp_path / "two"),
        "--device",
        "cpu",
    ]
    # What torchrun sets, without its launcher: it is slow to start and hides the processes' errors. As there, the store
    # is the parent's, on a port that the system gives, so that nobody else can take it in between.
    store = torch.distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(store.port), "TORCHELASTIC_USE_AGENT_STORE": "True"}
    place |= {"WORLD_SIZE": "2", "OMP_NUM_THREADS": "1"}
    processes = [
        subprocess.Popen(
            command, env={**os.environ, **place, "RANK": str(rank), "LOCAL_RANK": str(rank)}, stderr=subprocess.PIPE
        )
        for rank in range(2)
    ]
    errors = [process.communicate(timeout=240)[1].decode() for process in processes]
    assert [process.returncode for process in processes] == [0, 0], errors
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
    with pytest.raises(SettingError, match="A batch of 10 images cannot be shared evenly by 4 processes"):
        Processes(device, 0, 4).rows(10)


def test_a_device_that_is_not_there_is_refused(tiny: Recipe, tmp_path: Path) -> None:
    with pytest.raises(DeviceError, match="A device is auto, cpu or cuda"):
        train(tiny, tmp_path / "run", device="abacus")
