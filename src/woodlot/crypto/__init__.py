"""Homomorphic encryption: DT-PKC for revocable forests, Paillier for encrypted labels."""
