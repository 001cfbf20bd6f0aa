"""Seeded sampling: the noise and the sampler that workers and validators share."""
