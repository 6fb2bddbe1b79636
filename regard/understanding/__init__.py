"""The text around an encoder: texts to vectors, blanks that are filled, and search over documents."""
