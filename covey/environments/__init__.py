"""Environments: prompts and rewards. Worker and validator call the same code. Start with `base` and `registry`."""
