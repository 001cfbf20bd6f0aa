"""What holds for all tests: a machine that is busy for a moment is no reason for an example to fail."""

from hypothesis import settings

settings.register_profile("covey", deadline=None)
settings.load_profile("covey")
