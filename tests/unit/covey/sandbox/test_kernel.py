"""System calls by ctypes."""

import mmap

import pytest

from covey.sandbox import kernel

pytestmark = pytest.mark.unit


def test_collapse_memory__contents__stay_as_they_are():
    pages = mmap.mmap(-1, 6 << 20)
    for place in range(0, len(pages), 4096):
        pages[place] = place >> 12 & 0xFF
    kernel.collapse_memory()
    assert [pages[place] for place in range(0, len(pages), 4096)] == [number & 0xFF for number in range(1536)]
    pages.close()
