"""The run folder and all that writes into it: stages, checkpoints, the journal of metrics, provenance and curves."""

from .checkpoint import Checkpoint, flatten_optimizer, prefixed, restore_optimizer
from .curves import draw_curves
from .journal import Journal, Watcher
from .provenance import collect_provenance
from .run import Run, Stage, save_tensors

__all__ = [
    "Checkpoint",
    "Journal",
    "Run",
    "Stage",
    "Watcher",
    "collect_provenance",
    "draw_curves",
    "flatten_optimizer",
    "prefixed",
    "restore_optimizer",
    "save_tensors",
]
