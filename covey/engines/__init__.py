"""Engines run a policy: they generate rollouts and replay them.

`base` defines the interface, and `hf` is the reference.
"""
