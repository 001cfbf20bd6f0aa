"""The trainer: learns from accepted rollouts and publishes each new policy."""
