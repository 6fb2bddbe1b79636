"""The text side of generation: prompts in, continuations out, with the reason that each ended and the likelihood of its tokens."""
