"""The composed worker: how its settings and the pool's parameters configure the engine."""

import asyncio
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from covey.engines.vllm.engine import VllmEngine
from covey.environments.registry import DEMO, load
from covey.errors import TransientError
from covey.model.tiny import tiny_folder
from covey.runtime.cycle import CycleResult
from tests.fakes.coordinator import FakeCoordinator
from tests.fakes.grading import grade_here
from tests.fakes.tools import make_model_params, make_task
from worker import app, context, loop
from worker.config import WorkerConfig
from worker.engine_health import EngineHealth
from worker.leases import LeaseQueue

pytestmark = pytest.mark.unit

HANGING = """#!{python}
import os, socket, sys
from covey.engines.vllm.frames import Frame, receive, send
if sys.argv[2] == "covey.engines.installation":
    os.execv({python!r}, [{python!r}, "-m", "covey.engines.installation", "hf"])
connection = socket.socket(fileno=int(sys.argv[3]))
while True:
    try:
        question = receive(connection)
    except EOFError:
        sys.exit(0)
    if question.kind == "start":
        sizes = {{"hidden": 96, "vocabulary": 259, "longest": 4096}}
        send(connection, Frame("started", sizes, {{}}, question.call))
"""


def build_engine(folder: Path, *, lease_seconds: float, call_seconds: float) -> VllmEngine:
    """Build the worker's own engine, with a process that starts and then never answers."""
    script = folder / "python"
    script.write_text(HANGING.format(python=sys.executable))
    script.chmod(0o755)
    files = {"home": folder, "deployment": folder / "d", "key_file": folder / "k"}
    vllm = {"interpreter": script, "call_seconds": call_seconds}
    network = SimpleNamespace(
        pool=1,
        params=make_model_params(lease_seconds=lease_seconds),
        wallet=SimpleNamespace(address="0x1"),
        contracts=SimpleNamespace(nodes=SimpleNamespace(contributor_of=lambda pool, node: "0x2")),
        policies=None,
    )
    config = WorkerConfig(**files, pool=1, engine="vllm", vllm=vllm)
    engine = app.build(config, network, environment=load(DEMO), grade=grade_here, stop=asyncio.Event()).engine
    assert isinstance(engine, VllmEngine)
    return engine


@pytest.mark.parametrize(
    ("lease_seconds", "call_seconds", "limit"), [(0.2, 20.0, "0.4 s"), (60.0, 0.3, "0.3 s")], ids=["pool", "operator"]
)
async def test_build__engine_that_hangs__times_out_after_two_leases_and_there_is_room_again(
    start: Callable[..., context.Context], coordinator: FakeCoordinator, tmp_path: Path,
    lease_seconds: float, call_seconds: float, limit: str,
):  # fmt: skip
    with build_engine(tmp_path, lease_seconds=lease_seconds, call_seconds=call_seconds) as engine:
        engine.load_policy(tiny_folder(), 0)
        now = [0.0]
        ctx = start(
            engine=engine,
            leases=LeaseQueue(together=1, ahead=0, lease_seconds=lease_seconds, clock=lambda: now[0]),
            health=EngineHealth(clock=lambda: now[0]),
        )
        coordinator.orders.extend([make_task(task=n, lease=n) for n in (1, 2)])
        assert await loop.claim(ctx) is CycleResult.DONE
        working = asyncio.create_task(loop.work(ctx))
        await asyncio.sleep(0)
        assert not ctx.leases.has_room(0)
        now[0] = lease_seconds + 1
        loop.drop_overdue(ctx)
        with pytest.raises(TransientError, match=f"vLLM took more than {limit} for the request generate") as caught:
            await working
        assert (caught.value.code, engine.process_id) == ("engine_timeout", None)
        assert (ctx.leases.working, ctx.leases.claimed) == ([], [])
        assert await loop.claim(ctx) is CycleResult.DONE
        assert ctx.leases.ids == [2]
