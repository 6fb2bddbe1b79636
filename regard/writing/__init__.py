"""The text around a continuation: prompts in, text that follows out, with what ends it and how likely each token was."""
