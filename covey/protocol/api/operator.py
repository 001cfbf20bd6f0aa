"""Bodies of the routes that the pool's operator calls, which pause and resume new tasks."""

from covey.protocol.api.common import Body


class PauseRequest(Body):
    """Request to pause new tasks, or to assign them again."""

    is_paused: bool
