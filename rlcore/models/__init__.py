"""Models: base model and tokenizer build/load, HF save/load, packing, token log-probs and
values, digests."""
