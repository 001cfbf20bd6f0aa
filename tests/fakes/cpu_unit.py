"""A unit of CPU time, with which a test bounds the CPU time of its subject on a machine of any speed."""

import time


def measure_cpu_unit() -> float:
    """Return the CPU seconds that a fixed piece of pure Python takes now.

    It is the largest of three measurements, because a bound has to be generous.
    """
    return max(_measure() for _ in range(3))


def _measure() -> float:
    started = time.process_time()
    sum(number * number for number in range(200_000))
    return time.process_time() - started
