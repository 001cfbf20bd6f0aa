"""Environments hold prompts and rewards; worker and validator call the same code.  Start at `base` and `registry`."""
