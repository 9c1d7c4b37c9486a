"""Federated linear models (F-LR, the baseline of the Federated Forest paper). See docs/protocol/linear.md."""
