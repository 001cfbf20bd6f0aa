"""The state that one API process keeps in memory, and the batching of its requests."""
