"""The text around an encoder: texts to labels, tags and vectors, blanks that are filled, and search over documents."""
