"""Benchmarks of a whole network of processes, and of the project's own checks."""
