"""Joining: several model files become members of one, without training: averaged, or with betas fitted on images.

    from robust.export import export_members
    export_members(["a.onnx", "b.onnx"], "both.onnx", data="folder:held-out")

`joiner` is the way through it: `fitting` finds the betas, `graph` puts the graphs side by side behind one input.
"""

from .joiner import Joined, export_members

__all__ = ["Joined", "export_members"]
