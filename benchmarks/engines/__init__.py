"""Benchmarks of generation and of activation proofs, each against the public implementation."""
