"""Engines run a policy: they generate rollouts and replay them. `base` defines the interface; `hf` is the reference."""
