"""Benchmarks of what validators do: replay, proofs, grading, and what they find in dishonest work."""
