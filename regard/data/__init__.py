"""From files of text to batches of token ids: corpus, clean, tokenizer, store, sampler, batch."""
