"""The error with which a call in the sandbox can end instead of an answer."""

from covey.errors import CoveyError


class SandboxError(CoveyError):
    """The input ended its process or reached a limit.

    `code` is "sandbox_cpu", "sandbox_timeout" (the wall clock), "sandbox_memory", "sandbox_output" or "sandbox_died".
    """

    @property
    def is_limit(self) -> bool:
        """Whether a limit ended the call. False if the process died on its own."""
        return self.code != "sandbox_died"
