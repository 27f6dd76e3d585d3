"""Measurement on test images: clean, attacked and certified accuracy of runs and of model files."""

from .demonstration import attack_ordinary
from .evaluation import EvaluationOptions, Row, evaluate_model, evaluate_run, load_test_images

__all__ = [
    "EvaluationOptions",
    "Row",
    "attack_ordinary",
    "evaluate_model",
    "evaluate_run",
    "load_test_images",
]
