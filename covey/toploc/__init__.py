"""TOPLOC: turns activations into proof bytes, compares proofs with a replay, and judges the distances."""
