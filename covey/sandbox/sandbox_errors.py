"""The error with which a call in the sandbox can end."""

from covey.errors import CoveyError


class SandboxError(CoveyError):
    """The input crashed its process or reached a limit.

    `code` is "sandbox_cpu", "sandbox_timeout" (the wall clock), "sandbox_memory", "sandbox_output" or "sandbox_died".
    """

    @property
    def is_limit(self) -> bool:
        """Whether a limit ended the call. False if the process died on its own."""
        return self.code != "sandbox_died"
