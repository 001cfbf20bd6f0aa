"""System calls made with ctypes."""

import mmap

import pytest

from covey.sandbox import kernel

pytestmark = pytest.mark.unit


def test_collapse_memory__contents__stay_as_they_are():
    pages = mmap.mmap(-1, 6 << 20)
    for offset in range(0, len(pages), 4096):
        pages[offset] = offset >> 12 & 0xFF
    kernel.collapse_memory()
    assert [pages[offset] for offset in range(0, len(pages), 4096)] == [number & 0xFF for number in range(1536)]
    pages.close()
