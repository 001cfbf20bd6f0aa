"""The only structured logger. A role calls `configure` once, and all other code calls `get_logger`.

Lines are key=value on a terminal and JSON otherwise. Only named values are logged, and never a secret.
"""

import logging
import sys
from contextlib import suppress
from typing import TextIO, cast

import structlog


def configure(role: str, *, level: str = "info", json: bool | None = None) -> None:
    """Log events of `level` and above to standard error. Every line contains the role's name.

    `json` selects the format. None means JSON unless standard error is a terminal.
    """
    as_json = not sys.stderr.isatty() if json is None else json
    renderer: structlog.typing.Processor = (
        structlog.processors.JSONRenderer() if as_json else structlog.dev.ConsoleRenderer()
    )
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelNamesMapping()[level.upper()]),
        logger_factory=_open_logger,
    )
    structlog.contextvars.bind_contextvars(role=role)


def log_to_stderr() -> None:
    """Log to standard error without further settings, because commands print their results to standard output."""
    structlog.configure(logger_factory=_open_logger)


def _open_logger(*_: object) -> structlog.WriteLogger:
    """Return a logger on what is standard error now. A test or a demo may have redirected it.

    It writes a line and its end in one call. Otherwise a line that another thread writes could come in between.
    """
    return structlog.WriteLogger(cast("TextIO", _LossyStream(sys.stderr)))


class _LossyStream:
    """A stream that loses what cannot be written, as on a full disk. A log must not end the work that it is about."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Write a line, or lose it. Returns its length."""
        with suppress(OSError):
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        """Write what is left in memory, or keep it there."""
        with suppress(OSError):
            self._stream.flush()


def get_logger() -> structlog.stdlib.BoundLogger:
    """Return the logger. Pass values by name: `log.info("task claimed", task=7)`."""
    logger: structlog.stdlib.BoundLogger = structlog.get_logger()
    return logger
