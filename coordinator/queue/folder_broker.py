"""The broker of one machine: a folder of messages, which Celery reaches as `covey-folder://`.

Kombu's filesystem transport, except that a message appears and is taken by one rename. Kombu writes into the file that
a consumer may already read, and moves it to the folder of temporary files. On another disk that is a copy, which two
consumers make at once. Half a message ends the consumer.
"""

import os
import time
import uuid
from contextlib import suppress
from queue import Empty
from typing import Any, ClassVar

from kombu.transport import TRANSPORT_ALIASES, filesystem
from kombu.utils.json import dumps, loads

from covey.runtime.log import get_logger

SCHEME = "covey-folder"


class FolderChannel(filesystem.Channel):
    def _put(self, queue: Any, payload: Any, **kwargs: Any) -> None:  # type: ignore[override]
        name = f"{time.monotonic_ns() // 1_000_000}_{uuid.uuid4()}.{queue}.msg"
        target = os.path.join(self.data_folder_out, name)
        with open(f"{target}.new", "w") as file:
            file.write(dumps(payload))  # type: ignore[no-untyped-call]
        os.replace(f"{target}.new", target)

    def _get(self, queue: Any, timeout: float | None = None) -> Any:
        """Take the oldest message of a queue. Raises Empty if there is none."""
        for name in sorted(os.listdir(self.data_folder_in)):
            if name.partition(".")[2] != f"{queue}.msg":
                continue
            taken = os.path.join(self.data_folder_in, f"{name}.{uuid.uuid4()}")
            with suppress(FileNotFoundError):  # Another consumer was faster.
                os.rename(os.path.join(self.data_folder_in, name), taken)
                with open(taken, "rb") as file:
                    payload = file.read()
                os.remove(taken)
                try:
                    return loads(payload)  # type: ignore[no-untyped-call]
                except ValueError as error:
                    get_logger().error("a message cannot be read", queue=queue, error=str(error))
        raise Empty


class FolderTransport(filesystem.Transport):
    Channel = FolderChannel
    default_connection_params: ClassVar[dict[str, Any]] = {}
    """A folder has neither host nor port: kombu's defaults are warned of at every connection."""


def register() -> None:
    """Make the scheme known to Celery."""
    TRANSPORT_ALIASES[SCHEME] = f"{__name__}:FolderTransport"
