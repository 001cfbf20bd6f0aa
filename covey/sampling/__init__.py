"""Seeded sampling: the noise and the sampler that worker and validator share."""
