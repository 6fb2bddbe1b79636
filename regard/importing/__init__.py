"""Models of other programs as bundles: folders of transformers (transformers.py, which finds the family; marian.py), Marian's own
files (marian_npz.py) and llama.cpp's (gguf.py)."""
