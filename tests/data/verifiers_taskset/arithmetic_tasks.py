"""A taskset of verifiers 0.4: 24 tasks of arithmetic with two weighted rewards.

Task n asks for (n + 2) + n * n, (n + 2) - n * n or (n + 2) * n, as n % 3 is 0, 1 or 2.
"""

import re
from collections.abc import Iterator

import verifiers.v1 as vf

OPERATORS = ("+", "-", "*")
TAGS = re.compile(r"<answer>\s*(.*?)\s*</answer>", re.DOTALL)
NUMBER = re.compile(r"-?[0-9]+")


class ArithmeticData(vf.TaskData):
    """One task and its result."""

    truth: int


class ArithmeticConfig(vf.TasksetConfig):
    """Settings of the taskset."""

    first: int = 0
    """Number that is added to the left side of every task."""


class ArithmeticTask(vf.Task[ArithmeticData]):
    """`right`: the last integer of the reply is the result. `form`: exactly one part stands between answer tags."""

    @vf.reward(weight=0.75)
    async def right(self, trace: vf.Trace) -> float:
        numbers = NUMBER.findall(trace.last_reply)
        return float(bool(numbers) and int(numbers[-1]) == self.data.truth)

    @vf.reward(weight=0.25)
    async def form(self, trace: vf.Trace, task: ArithmeticData) -> float:
        if "raise" in trace.last_reply:
            raise RuntimeError(f"a reward of task {task.idx} fails")
        return float(len(TAGS.findall(trace.last_reply)) == 1)


class ArithmeticTaskset(vf.Taskset[ArithmeticTask, ArithmeticConfig]):
    """24 tasks."""

    def load(self) -> Iterator[ArithmeticTask]:
        for number in range(24):
            left, operator = number + 2 + self.config.first, OPERATORS[number % 3]
            right = number if operator == "*" else number * number
            truth = {"+": left + right, "-": left - right, "*": left * right}[operator]
            data = ArithmeticData(
                prompt=f"What is {left} {operator} {right}?",
                system_prompt="Write the result between <answer> tags.",
                truth=truth,
            )
            yield ArithmeticTask(data, self.config.task)


__all__ = ["ArithmeticTaskset"]
