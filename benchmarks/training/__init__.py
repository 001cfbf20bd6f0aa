"""Benchmarks of the trainer: speed, memory, use of a GPU, and learning from older policies."""
