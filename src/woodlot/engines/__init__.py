"""Woodlot inside engines that organisations run already: NVFlare carries the rounds, Flower starts the parties.

Both are given a user's signed order as a file (`woodlot order`), and both leave the model where the run's results are.
Parties keep their identities, policies and journals, and check the order as they do everywhere.
"""
