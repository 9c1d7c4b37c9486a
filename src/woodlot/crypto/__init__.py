"""Homomorphic encryption: DT-PKC for revocable forests."""
