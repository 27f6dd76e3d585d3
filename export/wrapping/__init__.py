"""Wrapping: somebody else's classifier, an ONNX file or a torch module, becomes one model file with a card.

    from robust.export import wrap
    wrap("resnet50.onnx", "model.onnx", classes="labels.txt", mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))

`wrapper` is the way through it: `graph` adapts an ONNX graph, `module` loads a torch module, `noise` measures what
noise does to its labels, `normalisation` doubts a mean and std that make the network worse.
"""

from .wrapper import Wrapped, wrap

__all__ = ["Wrapped", "wrap"]
