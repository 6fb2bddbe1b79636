"""The paper's claims, one module each, and the rivals of the Transformer that they are measured against; see benchmarks/claims.py."""
