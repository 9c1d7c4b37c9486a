"""Woodlot inside what organisations run already: MPI and NVFlare carry the rounds, Flower starts the parties.

NVFlare and Flower are given a user's signed order as a file (`woodlot order`), and leave the model where the run's
results are; between MPI ranks the user is at rank 0. Parties keep their identities, policies and journals, and check
the order as they do everywhere.
"""
