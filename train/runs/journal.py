"""What a training says while it runs: metrics.jsonl, TensorBoard if it is installed, and whoever watches."""

import contextlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from robustinfer.files import write_text

__all__ = ["Journal", "Silent", "Watcher"]


class Watcher(Protocol):
    """Someone who watches a training: a progress bar, a test."""

    def stage(self, number: int, epochs: int, steps: int) -> None:
        """A stage starts, or resumes."""

    def step(self, number: int, epoch: float, loss: float) -> None:
        """The stage is at this epoch, a fraction within it."""

    def epoch(self, record: Mapping[str, Any]) -> None:
        """An epoch is finished; the record is its line of metrics.jsonl."""

    def warn(self, warning: Mapping[str, str]) -> None:
        """Something a person should know: `code`, `message`, `link`."""


class Silent:
    """Watches and says nothing."""

    def stage(self, number: int, epochs: int, steps: int) -> None: ...

    def step(self, number: int, epoch: float, loss: float) -> None: ...

    def epoch(self, record: Mapping[str, Any]) -> None: ...

    def warn(self, warning: Mapping[str, str]) -> None: ...


class Journal:
    """Writes the lines of one run, in the first process only; tells the watcher everything."""

    def __init__(self, folder: Path, *, watcher: Watcher | None = None, write: bool = True) -> None:
        self.watcher: Watcher = watcher or Silent()
        self._file = folder / "metrics.jsonl" if write else None
        self._board = _tensorboard(folder) if write else None

    def rewind(self, stage: int, epoch: int, step: int) -> None:
        """Forget the lines from this position on: a resumed training writes them again."""
        if self._file is None or not self._file.is_file():
            return
        kept = []
        for line in self._file.read_text(encoding="utf-8").splitlines():
            with contextlib.suppress(ValueError, KeyError):  # a line that a kill cut short does not count
                record = json.loads(line)
                ended = record["kind"] == "epoch"  # an epoch's line is written when the next epoch is about to begin
                at = (record["epoch"] + 1, 0) if ended else (record["epoch"], record["step"])
                if (record["stage"], *at) <= (stage, epoch, step):
                    kept.append(line)
        write_text(self._file, "".join(f"{line}\n" for line in kept))

    def step(self, record: dict[str, Any], fraction: float) -> None:
        """A step was logged."""
        self._write({"kind": "step", **record})
        self.watcher.step(record["stage"], fraction, record["loss"])

    def epoch(self, record: dict[str, Any]) -> None:
        """An epoch was measured."""
        self._write({"kind": "epoch", **record})
        self.watcher.epoch(record)

    def close(self) -> None:
        """Write what TensorBoard still holds."""
        if self._board is not None:
            self._board.close()

    def _write(self, record: dict[str, Any]) -> None:
        if self._file is None:
            return
        with self._file.open("a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")
        if self._board is not None:
            for name, value in record.items():
                if isinstance(value, float):
                    self._board.add_scalar(f"{record['kind']}/{name}", value, record["images"])


def _tensorboard(folder: Path) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        return None
    return SummaryWriter(str(folder / "tensorboard"))
