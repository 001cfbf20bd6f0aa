"""What is computed of a batch: advantages, the objective, forward passes and updates."""
