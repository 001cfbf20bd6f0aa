"""The computation of a step: advantages, the objective, forward passes and updates."""
