"""Compiles all kernels before the processes start that would otherwise all compile them at once."""

import multiprocessing
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager

import numpy as np

_PROCESSES = 2
_WINDOW, _HIDDEN = 32, 64
"""Rows and columns of the hidden states from which a proof is built."""


@contextmanager
def compile_meanwhile() -> Iterator[Callable[[], bool]]:
    """Compile in other processes while the block runs, and wait for them at its end. Raises what compiling raises.

    Yields a function that returns whether all is compiled. A machine compiles once, which takes 13 seconds of a core,
    and then keeps the kernels on disk. Loading them takes a second.
    """
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(_PROCESSES, context, _ignore_interrupts) as pool:
        compiled = [pool.submit(compile_kind) for compile_kind in (_compile_proofs, _compile_sampling, _compile_deltas)]
        try:
            yield lambda: all(each.done() for each in compiled)
            for each in compiled:
                each.result()
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def _ignore_interrupts() -> None:
    """Leave Ctrl-C to the main process, which ends this one."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _compile_proofs() -> None:
    from covey.toploc import proofs

    hidden = np.arange(_WINDOW * _HIDDEN, dtype=np.uint16).reshape(_WINDOW, _HIDDEN)
    proofs.compare_all(proofs.build(hidden), hidden)


def _compile_sampling() -> None:
    from covey.sampling.sampler import load_kernels

    load_kernels("cpu")


def _compile_deltas() -> None:
    from covey.shardcast.delta.warm_up import compile_kernels

    compile_kernels()


if __name__ == "__main__":
    with compile_meanwhile():
        pass
