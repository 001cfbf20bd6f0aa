"""Freed memory stays with the process, measured by the pages that the kernel clears, and products are repeatable."""

import platform
import subprocess
import sys

import pytest

pytestmark = [
    pytest.mark.unit,
    pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the C library is not glibc"),
]
CODE = """
import resource, torch
from concurrent.futures import ThreadPoolExecutor
from covey.engines.cpu_tuning import keep_memory
torch.set_num_threads(1)
keep_memory()
def work():
    kept = [torch.ones(1 << 20) for _ in range(30)]  # 120 MiB in tensors of 4
def repeat(times):  # in a thread, as services do, because the heap of a thread's own arena ends at 64 MiB
    with ThreadPoolExecutor(1) as thread:
        thread.submit(lambda: [work() for _ in range(times)]).result()
repeat(3)
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
repeat(4)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def count_faults() -> int:
    command = [sys.executable, "-c", CODE]
    return int(subprocess.run(command, capture_output=True, text=True, check=True, timeout=300).stdout)


def test_keep_memory__tensors_come_and_go__their_pages_are_not_cleared_again() -> None:
    assert count_faults() < 12_000  # 122,880 pages are written; without keep_memory most of them fault


PRODUCTS = """
import torch
from covey.engines.cpu_tuning import make_products_repeatable
make_products_repeatable()
products = set()
for rows, depth, columns in ((1, 256, 300), (5, 1000, 300)):
    generator = torch.Generator().manual_seed(1)
    left, right = torch.randn(rows, depth, generator=generator), torch.randn(depth, columns, generator=generator)
    for threads in (1, 2):
        torch.set_num_threads(threads)
        for offset in range(16):  # in numbers of 4 bytes, from the beginning of a cache line
            moved = torch.empty(left.numel() + offset)[offset:].view_as(left).copy_(left)
            products.add((rows, bytes((moved @ right).numpy())))
print(len(products))
"""


def test_make_products_repeatable__other_addresses_and_threads__products_are_equal() -> None:
    run = subprocess.run([sys.executable, "-c", PRODUCTS], capture_output=True, text=True, check=True, timeout=300)
    assert run.stdout == "2\n"  # one for each pair of matrices
