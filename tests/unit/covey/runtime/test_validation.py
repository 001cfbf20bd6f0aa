from typing import ClassVar

import pytest
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from covey.runtime.validation import explain, explain_unknown

pytestmark = pytest.mark.unit


class Part(BaseModel):
    model_config = ConfigDict(extra="forbid")
    renamed: ClassVar[dict[str, str]] = {"largest": "max_length"}
    max_length: int = 1
    inner: "Part | None" = None


class Whole(BaseModel):
    model_config = ConfigDict(extra="forbid")
    renamed: ClassVar[dict[str, str]] = {"place": "home", "part.size": "part.max_length", "part.folder": "home"}
    home: str
    part: Part = Part()
    options: dict[str, int] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _refuse_x(self) -> "Whole":
        if self.home == "x":
            raise ValueError("home must not be x")
        return self


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({}, "home: missing"),
        ({"home": "a", "hom": "b"}, "hom: unknown name; did you mean home?"),
        ({"home": "a", "zzz": "b"}, "zzz: unknown name"),
        ({"home": "a", "part": {"max_lenght": 2}}, "part.max_lenght: unknown name; did you mean max_length?"),
        (
            {"home": "a", "part": {"inner": {"maxlength": 2}}},
            "part.inner.maxlength: unknown name; did you mean max_length?",
        ),
        (
            {"part": {"max_length": "q"}},
            "home: missing; part.max_length: Input should be a valid integer, unable to parse string as an integer",
        ),
        ({"home": "x"}, "home must not be x"),
        ({"home": "a", "part": {"largest": 2}}, "part.largest: old name; use part.max_length instead"),
        ({"home": "a", "place": "b"}, "place: old name; use home instead"),
        ({"home": "a", "part": {"size": 2}}, "part.size: old name; use part.max_length instead"),
        ({"home": "a", "part": {"folder": {"name": 2}}}, "part.folder: old name; use home instead"),
    ],
)
def test_explain__invalid_values__gives_the_path_and_the_nearest_name(values, expected):
    with pytest.raises(ValidationError) as caught:
        Whole.model_validate(values)
    assert explain(caught.value, Whole) == expected


def test_explain_unknown__near_and_far():
    assert (
        explain_unknown("min_steak", ["min_stake", "veto_window"]) == "min_steak: unknown name; did you mean min_stake?"
    )
    assert explain_unknown("colour", ["min_stake", "veto_window"]) == "colour: unknown name"
