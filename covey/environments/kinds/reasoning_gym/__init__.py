"""Environments of kind `reasoning_gym`: tasks from generators of the package reasoning-gym."""
