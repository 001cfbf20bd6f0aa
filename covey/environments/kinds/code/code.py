"""Programming tasks: the program in a completion must pass every test of the data set's row."""

from collections.abc import Mapping
from importlib import import_module
from typing import ClassVar, cast

from pydantic import JsonValue

from covey.environments.base import JsonObject
from covey.environments.kinds.code import layouts
from covey.environments.kinds.dataset_rows import RowSource


class CodeSource(RowSource):
    """Tasks whose answers are Python programs that run against tests. There is no partial credit."""

    task_type: ClassVar[str] = "code"
    extraction: ClassVar[str] = "last_code_block"
    version: ClassVar[str] = "3"
    requires_isolation: ClassVar[bool] = True

    @classmethod
    def read_info(cls, raw: JsonObject) -> JsonObject:
        """Convert the tests of a row, in any layout that `layouts.read_tests` knows."""
        return layouts.read_tests(raw)

    @classmethod
    def read_columns(cls, values: Mapping[str, object]) -> tuple[str, JsonObject]:
        """Read the question and the tests of a row, in any layout that `layouts.read_columns` knows."""
        return layouts.read_columns(values)

    def grade(self, verification: JsonObject, answer: str) -> float:
        """Return 1 if the program passes all tests, else 0. Raises GradeLimit if the program reaches a limit."""
        from covey.environments.kinds.code.programs import (
            AssertionTests,
            ProgramLimits,
            ProgramTests,
            run_assertions,
            run_tests,
        )

        if "assertions" in verification:
            assertions = AssertionTests(
                source=cast(str, verification["assertions"]),
                names=cast(list[str], verification["names"]),
                prelude=cast(str, verification["prelude"]),
            )
            return float(run_assertions(answer, assertions, ProgramLimits.read()))
        tests = ProgramTests(
            inputs=cast(list[JsonValue], verification["inputs"]),
            outputs=cast(list[JsonValue], verification["outputs"]),
            function=cast(str | None, verification["fn_name"]) or "",
        )
        return float(run_tests(answer, tests, ProgramLimits.read()))

    def warm_up(self) -> None:
        """Load the module that runs programs and compares outputs. This does not run a program."""
        import_module("covey.environments.kinds.code.programs")
