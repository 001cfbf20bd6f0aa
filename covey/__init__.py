"""Covey: reinforcement learning of language models on untrusted computers."""
