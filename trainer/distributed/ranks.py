"""The processes of one trainer that torchrun started: rank 0 leads, the others join in what it orders.

Called by `app`, `follower`, `learner` and `checkpoint`.  Without torchrun there is one rank, and nothing here does
anything.
"""

import asyncio
import os
import threading
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from covey.errors import OperatorError
from covey.runtime.cycle import wait_or_stop
from trainer.distributed.commands import RankCommand, Verb, decode_order, encode_order

BEAT_SECONDS = 10.0
"""Between two signs of life; far below the time after which a silent rank is given up."""


class Ranks:
    """This process among all of one trainer."""

    def __init__(self, *, rank: int = 0, device: str = "cpu", mesh: DeviceMesh | None = None) -> None:
        self.rank, self.device, self.mesh = rank, device, mesh
        self._turn = threading.Lock()
        self._is_apart = False
        """Whether the others may be in the middle of what this one has left by an exception."""

    @property
    def is_shared(self) -> bool:
        """Whether there are others."""
        return self.mesh is not None

    @property
    def size(self) -> int:
        """How many there are."""
        return 1 if self.mesh is None else self.mesh.size()

    @contextmanager
    def together(self, order: RankCommand) -> Iterator[None]:
        """Within, all ranks do the same: rank 0 sends the order, the others are here because they got it.

        Raises OperatorError("rank_lost").  Whatever else is raised within must end the process: it has left the step.
        """
        if not self.is_shared or self.rank > 0:
            yield
            return
        with explain_lost_rank(), self._turn:
            self._is_apart = True
            _send(order)
            yield
            self._is_apart = False

    def receive(self) -> RankCommand:
        """Wait for rank 0's next order; raise OperatorError("rank_lost") where it is gone or silent for too long."""
        with explain_lost_rank():
            while (order := _receive()).verb is Verb.BEAT:
                pass
        return order

    def beat(self) -> None:
        """Tell the others that this rank lives, unless they are at work together; raises as `receive`."""
        if not self._turn.acquire(blocking=False):
            return
        try:
            if not self._is_apart:
                with explain_lost_rank():
                    _send(RankCommand(verb=Verb.BEAT))
        finally:
            self._turn.release()

    def spread(self, tensors: Iterable[Tensor]) -> None:
        """Make them on every rank what they are on rank 0, in place."""
        for tensor in tensors if self.is_shared else ():
            dist.broadcast(tensor, 0)


ALONE = Ranks()
"""The one process of a trainer that torchrun did not start."""


@contextmanager
def open_ranks(device: str, *, seconds: float) -> Iterator[Ranks]:
    """Meet the others that torchrun started, if it did.  A rank that is silent for `seconds` is given up.

    "cuda" becomes the device of this rank.  Raises OperatorError("rank_lost").
    """
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if not dist.is_torchelastic_launched() or size == 1:
        yield Ranks(device=device)
        return
    kind, backend = torch.device(device).type, "gloo"
    if kind == "cuda":
        place = int(os.environ["LOCAL_RANK"])
        torch.cuda.set_device(place)
        device, backend = f"cuda:{place}", "cpu:gloo,cuda:nccl"  # orders go from memory to memory
    with explain_lost_rank():
        dist.init_process_group(backend, timeout=timedelta(seconds=seconds))
        mesh = init_device_mesh(kind, (size,))
    yield Ranks(rank=dist.get_rank(), device=device, mesh=mesh)
    with explain_lost_rank():  # after a failure nobody would answer; the end of this process tells the others
        dist.all_reduce(torch.zeros(1))
        dist.destroy_process_group()


@asynccontextmanager
async def lead(ranks: Ranks, stop: asyncio.Event) -> AsyncIterator[None]:
    """Within, the other ranks wait for orders; at a good end they are let go.  One that is lost sets `stop` and
    raises OperatorError("rank_lost") at the end, unless something else failed: that may be why it is lost."""
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
    """Raises OperatorError("rank_lost") where torch could not reach another rank within."""
    try:
        yield
    except RuntimeError as error:
        if not isinstance(error, dist.DistError) and "gloo" not in str(error):
            raise
        raise OperatorError(
            "rank_lost",
            f"another rank of this trainer is gone: {str(error).splitlines()[0]}",
            fix="Read the log of the rank that ended first, then start all again: they resume",
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
