"""Engines run a policy: generate rollouts and replay them.  `base` says what an engine owes; `hf` is the reference."""
