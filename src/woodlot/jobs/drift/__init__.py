"""Drift: each owner compares new rows with those of a training, and tells the user alone how far they are apart."""
