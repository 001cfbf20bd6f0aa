"""`covey pool pause` and `covey pool resume`: stop and continue the assignment of new tasks."""

from pathlib import Path
from typing import TYPE_CHECKING

from covey.console.options import Folder, Json, show
from covey.errors import OperatorError

if TYPE_CHECKING:
    from covey.protocol.api.public import StatusView


def pool_pause(folder: Folder = Path(), as_json: Json = False) -> None:
    """Pause a pool's new tasks. Work that is leased, submitted or accepted goes on, and is paid. Operator only.

    Example: `covey pool pause mypool`
    """
    _set_paused(folder, True, as_json)


def pool_resume(folder: Folder = Path(), as_json: Json = False) -> None:
    """Assign new tasks again after a pause, which the operator or a run that cannot learn has caused. Operator only.

    Example: `covey pool resume mypool`
    """
    _set_paused(folder, False, as_json)


def _set_paused(folder: Path, is_paused: bool, as_json: bool) -> None:
    import asyncio

    from covey.chain.deployment import Deployment
    from covey.chain.wallet import load_key
    from covey.local.ports import SETTINGS
    from covey.local.readiness import find_settings
    from covey.network.coordinator_client import CoordinatorClient

    settings = find_settings(folder)
    if settings is None:
        raise OperatorError(
            "no_coordinator",
            f"{folder} has no {SETTINGS}, so it is not the folder of a pool's operator",
            fix="Use the folder that covey init pool has created",
        )
    operator, chain_id = load_key(settings.key_file), Deployment.load(settings.deployment).chain_id

    async def ask() -> "StatusView":
        async with CoordinatorClient(settings.base_url, operator, chain_id=chain_id) as client:
            await client.set_paused(is_paused)
            return await client.get_status()

    status = asyncio.run(ask())
    show({"pool": status.pool, "paused": is_paused, "signs": [sign.value for sign in status.signs]}, as_json)
