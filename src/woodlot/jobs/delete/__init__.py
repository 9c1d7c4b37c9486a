"""Deleting a model, everywhere it is kept."""
