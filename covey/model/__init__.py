"""Models and tokenizers: loading by name, weights on disk, conversion of text to tokens, and the shipped tiny model."""
