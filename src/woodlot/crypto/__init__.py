"""Homomorphic encryption: DT-PKC for revocable forests, Paillier for labels that never leave."""
