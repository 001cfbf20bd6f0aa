"""The broker of one machine: a folder of messages, which Celery reaches as `covey-folder://`.

Kombu's filesystem transport, except that a message appears in one piece: kombu writes into the file that a consumer may
already read, and half a message ends the consumer.
"""

import os
import time
import uuid
from typing import Any, ClassVar

from kombu.transport import TRANSPORT_ALIASES, filesystem
from kombu.utils.json import dumps

SCHEME = "covey-folder"


class FolderChannel(filesystem.Channel):
    def _put(self, queue: Any, payload: Any, **kwargs: Any) -> None:  # type: ignore[override]
        name = f"{time.monotonic_ns() // 1_000_000}_{uuid.uuid4()}.{queue}.msg"
        target = os.path.join(self.data_folder_out, name)
        with open(f"{target}.new", "w") as file:
            file.write(dumps(payload))  # type: ignore[no-untyped-call]
        os.replace(f"{target}.new", target)


class FolderTransport(filesystem.Transport):
    Channel = FolderChannel
    default_connection_params: ClassVar[dict[str, Any]] = {}
    """A folder has neither host nor port: kombu's defaults are warned of at every connection."""


def register() -> None:
    """Make the scheme known to Celery."""
    TRANSPORT_ALIASES[SCHEME] = f"{__name__}:FolderTransport"
