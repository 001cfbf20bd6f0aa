"""Checkpoints: the state that survives a crash, and how a run resumes from it."""
