"""The paper's claims, a module each, and the rivals of the Transformer that they are measured against (benchmarks/claims.py)."""
