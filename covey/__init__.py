"""Covey: reinforcement learning of language models on untrusted computers."""

__version__ = "0.1.0"
