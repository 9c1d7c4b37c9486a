"""Differential privacy: mechanisms, their exact cost, and the record of what has been spent.

Nothing here talks to anybody. Mechanisms take arrays and give arrays; only `woodlot.privacy.budget` writes a file.
"""
