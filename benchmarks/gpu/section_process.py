"""One section of `make gpu` in a process of its own: `python -m benchmarks.gpu.section_process NAME OPTIONS`."""

import argparse
import gc
import os
import signal
import sys
from importlib import import_module
from pathlib import Path

import torch

from benchmarks.gpu.section_list import SECTIONS
from benchmarks.gpu.section_run import SectionRun
from covey.engines.hf.engine import prepare_process

THREADS = 8
"""Maximum number of CPU threads on a machine with a GPU, which write and hash files.  A CPU gets one."""


def main() -> int:
    """Run the section that the command line names."""
    parser = argparse.ArgumentParser("python -m benchmarks.gpu.section_process", description=__doc__)
    parser.add_argument("section", choices=[each.name for each in SECTIONS if each.module])
    parser.add_argument("--file", type=Path, required=True, help="file to which rows are appended")
    parser.add_argument("--ends", type=float, required=True, help="time.monotonic() at which the process is ended")
    parser.add_argument("--tiny", action="store_true", help="sizes for a CPU")
    parser.add_argument("--noise", action="store_true", help="compare the noise of all words")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that a section's engines are closed
    device = "cuda" if torch.cuda.is_available() else "cpu"
    prepare_process(threads=min(THREADS, os.cpu_count() or 1) if device == "cuda" else 1)
    run = SectionRun(
        section=options.section,
        device=device,
        is_tiny=options.tiny,
        ends=options.ends,
        file=options.file,
        checks_noise=options.noise,
    )
    (name,) = (each.module for each in SECTIONS if each.name == options.section)
    module = import_module(name)
    gc.freeze()  # each case collects garbage, and need not look at what imports have made
    module.measure(run)
    return 0


if __name__ == "__main__":
    sys.exit(main())
