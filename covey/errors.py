"""The hierarchy of errors, by what the caller must do.

CoveyError
  TransientError   wait and retry; only `runtime` and the outbox do that
  ProtocolError    reject the peer's request with a stable code
  OperatorError    stop the process and tell the operator what to do

Cheating is never an exception. It is reported as a `Verdict`.
"""


class CoveyError(Exception):
    """Base class of all errors of Covey. `code` is stable, so scripts and peers may compare it."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message


class TransientError(CoveyError):
    """Something outside this process did not respond. The same call may succeed later.

    Example: code "chain_unreachable".
    """


class ProtocolError(CoveyError):
    """A peer broke a rule. `status` is the HTTP status of the response. Example: code "lease_expired", status 409."""

    def __init__(self, code: str, message: str, *, status: int = 400) -> None:
        super().__init__(code, message)
        self.status = status


class OperatorError(CoveyError):
    """The setup of this process is wrong. `fix` is one sentence that says what to do."""

    def __init__(self, code: str, message: str, *, fix: str) -> None:
        super().__init__(code, f"{message}. {fix}")
        self.fix = fix
