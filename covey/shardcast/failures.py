"""Why no relay delivered: each relay's failure, and the error that they make together."""

from covey.errors import TransientError
from covey.runtime.urls import hide_secrets


class NotDeliveredError(Exception):
    """A relay did not give what it was asked for; says what it did instead."""


class SilentError(NotDeliveredError):
    """It did not answer."""


class LackingError(NotDeliveredError):
    """It answered that it does not have it."""


class Failures:
    """What became of one thing at each relay that was asked for it."""

    def __init__(self) -> None:
        self._texts: list[str] = []
        self._are_all_silent = self._are_all_lacking = True

    def note(self, url: str, error: NotDeliveredError) -> None:
        self._texts.append(f"{hide_secrets(url)} {error}")
        self._are_all_silent &= isinstance(error, SilentError)
        self._are_all_lacking &= isinstance(error, LackingError)

    def to_error(self, thing: str) -> TransientError:
        """Return "no_relay", or "not_at_relays" if all relays answered that they lack `thing`."""
        told = "; ".join(self._texts)
        if self._are_all_silent:
            fix = "Start a relay, or correct relays in the settings"
            return TransientError("no_relay", f"no relay answers that is asked for {thing}: {told}. {fix}")
        code = "not_at_relays" if self._are_all_lacking else "no_relay"
        return TransientError(code, f"no relay has {thing}: {told}")
