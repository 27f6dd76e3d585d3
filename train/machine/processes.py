"""The processes of one training: one by default, many under torchrun, which share each batch between them."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta

import torch
from torch import Tensor, distributed, nn
from torch.nn.parallel import DistributedDataParallel

from robustinfer.errors import ArgumentError, DeviceError, StoppedError, TrainingError

__all__ = ["Processes", "choose_device", "join_processes"]


def _never() -> bool:
    return False


@dataclass(frozen=True)
class Processes:
    """This process among `world` processes, and the device it computes on.

    `stop` says whether somebody has asked the training to end early. It is asked between two steps and, where there is
    only one process, between two batches of a measurement.
    """

    device: torch.device
    rank: int = 0
    world: int = 1
    stop: Callable[[], bool] = _never

    @property
    def first(self) -> bool:
        """Whether this process writes the files and shows the progress."""
        return self.rank == 0

    def rows(self, total: int) -> slice:
        """The rows of a batch of `total` images that belong to this process."""
        if total % self.world:
            raise ArgumentError(
                f"A batch of {total} images cannot be shared evenly by {self.world} processes; change `batch`."
            )
        share = total // self.world
        return slice(self.rank * share, (self.rank + 1) * share)

    def wrap(self, model: nn.Module) -> nn.Module:
        """The model, averaging its gradients over all processes if there are several."""
        if self.world == 1:
            return model
        if self.device.type == "cuda":  # on CPU torch has no synchronised batch normalisation
            model = nn.SyncBatchNorm.convert_sync_batchnorm(model)
            return DistributedDataParallel(model, device_ids=[self.device.index])
        return DistributedDataParallel(model)

    def sum(self, values: Tensor) -> Tensor:
        """The sum over all processes."""
        if self.world > 1:
            distributed.all_reduce(values)
        return values

    def agree(self, values: Tensor) -> Tensor:
        """The values of the first process, in every process."""
        if self.world > 1:
            distributed.broadcast(values, src=0)
        return values

    def decide(self, yes: bool) -> bool:
        """The first process's answer, in every process: what depends on a clock must be decided by one of them.

        The answer travels between the processors, so that a GPU need not finish its queue for it.
        """
        return bool(self.agree(torch.tensor(yes))) if self.world > 1 else yes

    def leave_if_asked(self) -> None:
        """Raise `StoppedError` in every process if the first one was asked to stop."""
        if self.decide(self.stop()):
            raise StoppedError("The training was stopped; the run folder holds everything up to this moment.")

    def wait(self) -> None:
        """Until all processes are here."""
        if self.world > 1:
            distributed.barrier()


def choose_device(device: str = "auto") -> torch.device:
    """The device of this name; `auto` takes a GPU if there is one."""
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        chosen = torch.device(device)
    except RuntimeError as error:
        raise DeviceError(f"A device is auto, cpu or cuda[:N]; found {device!r}.") from error
    if chosen.type == "cuda" and (chosen.index or 0) >= torch.cuda.device_count():
        raise DeviceError(f"The device {device} was requested; torch finds {torch.cuda.device_count()} CUDA devices.")
    return chosen


@contextmanager
def join_processes(device: str = "auto", stop: Callable[[], bool] = _never) -> Iterator[Processes]:
    """Join the group that torchrun started (it sets WORLD_SIZE), or stand alone; leave it at the end."""
    chosen = choose_device(device)
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        yield Processes(chosen, stop=stop)
        return
    if chosen.type == "cuda":
        chosen = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        torch.cuda.set_device(chosen)
    # An epoch's measurements may take long on one process while the others wait for it.
    backend = "cpu:gloo,cuda:nccl" if chosen.type == "cuda" else "gloo"
    distributed.init_process_group(backend, timeout=timedelta(hours=2))
    try:
        yield Processes(chosen, distributed.get_rank(), distributed.get_world_size(), stop)
    except (RuntimeError, distributed.DistError) as error:
        if not _lost(error):
            raise
        raise TrainingError(
            "Another process of this training ended or can no longer be reached. Look for its message above, "
            "restart all processes, and continue with --resume; finished stages and the last checkpoint are kept."
        ) from error
    finally:
        distributed.destroy_process_group()


def _lost(error: Exception) -> bool:
    """Whether a collective failed because another process is gone: torch says so in words only."""
    words = str(error).lower()
    return isinstance(error, distributed.DistError) or "connection closed by peer" in words or "gloo" in words
