"""Measurement on test images: clean, attacked and certified accuracy of runs and of model files."""
