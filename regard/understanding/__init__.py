"""From texts to labels: the text around an encoder with a head for classes or tags."""
