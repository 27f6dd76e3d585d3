"""Export: a run folder becomes one self-explaining model file, checked before it is kept.

from robust.export import export_run
export_run("runs/digits", "digits.onnx", sampler=True)

from robust.export import wrap
wrap("resnet50.onnx", "model.onnx", classes="labels.txt", mean=..., std=...)

`exporter` is the way through it: `fusion` makes one module of the ensemble, `onnx_file` and `torch_files` write it,
`sampler` adds the noise, `acceptance` compares the file with the ensemble. `cascade_file` writes a cascade, whose rule
`cascade_fit` finds. `wrapping` makes a model file of somebody else's classifier, `joining` makes one of several files.
"""

from .acceptance import Images, Parity, synthetic_images
from .cascade import Rule
from .cascade_fit import CascadeFit, CascadeOptions
from .exporter import Exported, export_ensemble, export_run
from .joining import Joined, export_members
from .wrapping import Wrapped, wrap

__all__ = [
    "CascadeFit",
    "CascadeOptions",
    "Exported",
    "Images",
    "Joined",
    "Parity",
    "Rule",
    "Wrapped",
    "export_ensemble",
    "export_members",
    "export_run",
    "synthetic_images",
    "wrap",
]
