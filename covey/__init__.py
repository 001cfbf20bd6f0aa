"""Covey: reinforcement learning of language models on computers whose owners nobody has to trust."""
