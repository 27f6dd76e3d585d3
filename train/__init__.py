"""Placeholder docstring, replaced with the part."""
