"""The processes of one trainer under torchrun: rank 0 leads, and the others carry out its commands.

Without torchrun there is one rank, and the functions of this module have no effect.
"""

import asyncio
import errno
import os
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from datetime import timedelta

import torch
import torch.distributed as dist
from safetensors import SafetensorError
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from covey.errors import OperatorError
from covey.runtime.cycle import wait_or_stop
from covey.runtime.full_disk import is_full
from trainer.distributed.commands import RankCommand, Verb, decode_order, encode_order

BEAT_SECONDS = 10.0
"""Seconds between two heartbeats, far below the timeout after which a silent rank counts as lost."""


class Ranks:
    """This process as one rank of a trainer.

    `rank` is its number, and `device` its device, for example "cuda:0". `mesh` contains all ranks. It is None if there
    is only one. `writers` is a gloo group of all ranks, on which only the threads that write communicate.
    """

    def __init__(
        self,
        *,
        rank: int = 0,
        device: str = "cpu",
        mesh: DeviceMesh | None = None,
        writers: dist.ProcessGroup | None = None,
    ) -> None:
        self.rank, self.device, self.mesh, self._writers = rank, device, mesh, writers
        self._turn = threading.Lock()
        self._is_apart = False
        """Whether this rank has left a command by an exception while the other ranks may still be in it."""

    @property
    def is_shared(self) -> bool:
        """Whether there are other ranks."""
        return self.mesh is not None

    @property
    def size(self) -> int:
        """Number of ranks."""
        return 1 if self.mesh is None else self.mesh.size()

    @contextmanager
    def together(self, order: RankCommand) -> Iterator[None]:
        """Carry out a command on all ranks. Rank 0 sends it on entry, and the other ranks enter after they received it.

        Raises OperatorError("rank_lost"). Any other error raised in the context must end the process, because this rank
        has then left the command while the others are still in it.
        """
        if not self.is_shared or self.rank > 0:
            yield
            return
        with explain_lost_rank(), self._turn:
            self._is_apart = True
            _send(order)
            yield
            self._is_apart = False

    @contextmanager
    def write_together(self) -> Iterator[None]:
        """Write files on all ranks. The context begins when all ranks have come to it, and ends when all have written.

        It may run in a thread alongside commands. Raises OSError on rank 0 if another rank failed to write, and
        OperatorError("rank_lost").
        """
        if not self.is_shared:
            yield
            return
        failure: Exception | None = None
        with explain_lost_rank():
            dist.barrier(self._writers)
            try:
                yield
            except (OSError, SafetensorError) as error:
                failure = error
            code = 0 if failure is None else errno.ENOSPC if is_full(failure) else errno.EIO
            codes = [torch.zeros(1, dtype=torch.int64) for _ in range(self.size)]
            dist.all_gather(codes, torch.tensor([code]), self._writers)
        if failure is not None:
            raise failure
        for rank, other in enumerate(codes if self.rank == 0 else []):
            if int(other):
                raise OSError(int(other), f"rank {rank} could not write its part: {os.strerror(int(other))}")

    def receive(self) -> RankCommand:
        """Wait for rank 0's next command.

        Raises OperatorError("rank_lost") if rank 0 has ended or is silent for too long.
        """
        with explain_lost_rank():
            while (order := _receive()).verb is Verb.BEAT:
                pass
        return order

    def beat(self) -> None:
        """Send a heartbeat to the other ranks, unless a command is running. Raises OperatorError("rank_lost")."""
        if not self._turn.acquire(blocking=False):
            return
        try:
            if not self._is_apart:
                with explain_lost_rank():
                    _send(RankCommand(verb=Verb.BEAT))
        finally:
            self._turn.release()


ALONE = Ranks()
"""The only rank of a trainer without torchrun."""


@contextmanager
def open_ranks(device: str, *, seconds: float) -> Iterator[Ranks]:
    """Connect to the other ranks if torchrun started this process. A rank that is silent for `seconds` counts as lost.

    The device "cuda" becomes this rank's device. Raises OperatorError("rank_lost").
    """
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if not dist.is_torchelastic_launched() or size == 1:
        yield Ranks(device=device)
        return
    kind, backend = torch.device(device).type, "gloo"
    if kind == "cuda":
        index = int(os.environ["LOCAL_RANK"])
        torch.cuda.set_device(index)
        device, backend = f"cuda:{index}", "cpu:gloo,cuda:nccl"  # commands travel between main memories, through gloo
    with explain_lost_rank():
        dist.init_process_group(backend, timeout=timedelta(seconds=seconds))
        mesh = init_device_mesh(kind, (size,))
        writers = dist.new_group(backend="gloo", timeout=timedelta(seconds=seconds))
    yield Ranks(rank=dist.get_rank(), device=device, mesh=mesh, writers=writers)
    with explain_lost_rank():  # skipped after a failure: no rank would answer, and this process's end informs them
        dist.all_reduce(torch.zeros(1))
        dist.destroy_process_group()


@asynccontextmanager
async def lead(ranks: Ranks, stop: asyncio.Event) -> AsyncIterator[None]:
    """Lead the other ranks. In the context they wait for commands and get heartbeats. On success they are stopped at
    the end.

    A lost rank sets `stop`, and OperatorError("rank_lost") is raised at the end. If there was a different failure, its
    error is raised instead, because it may be the reason why the rank was lost.
    """
    if not ranks.is_shared:
        yield
        return
    ended = asyncio.Event()
    beating = asyncio.create_task(_beat(ranks, ended, stop))
    is_good = False
    try:
        yield
        is_good = True
    finally:
        ended.set()
        (lost,) = await asyncio.gather(beating, return_exceptions=True)
        if is_good and lost is not None:
            raise lost
    with ranks.together(RankCommand(verb=Verb.STOP)):
        pass


async def _beat(ranks: Ranks, ended: asyncio.Event, stop: asyncio.Event) -> None:
    try:
        while not await wait_or_stop(ended, BEAT_SECONDS):
            await asyncio.to_thread(ranks.beat)
    except OperatorError:
        stop.set()
        raise


@contextmanager
def explain_lost_rank() -> Iterator[None]:
    """Raise OperatorError("rank_lost") if torch cannot reach another rank in the context."""
    try:
        yield
    except RuntimeError as error:
        if not isinstance(error, dist.DistError) and "gloo" not in str(error):
            raise
        raise OperatorError(
            "rank_lost",
            f"the connection to another rank of this trainer was lost: {str(error).splitlines()[0]}",
            fix="Read the log of the rank that ended first, then restart all ranks; they resume from "
            "the newest checkpoint",
        ) from error


def _send(order: RankCommand) -> None:
    data = torch.frombuffer(bytearray(encode_order(order)), dtype=torch.uint8)
    dist.broadcast(torch.tensor([len(data)]), 0)
    dist.broadcast(data, 0)


def _receive() -> RankCommand:
    size = torch.zeros(1, dtype=torch.int64)
    dist.broadcast(size, 0)
    data = torch.empty(int(size), dtype=torch.uint8)
    dist.broadcast(data, 0)
    return decode_order(data.numpy().tobytes())
