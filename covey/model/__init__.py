"""Models and tokenizers: loading by name, weights on disk, text to tokens, and the shipped tiny model."""
