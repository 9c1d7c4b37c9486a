"""Metrics of answers without scikit-learn, which services do not load: the same numbers, and fast under weights."""
