"""Environments of kind `reasoning_gym`: generators of the package reasoning-gym."""
