import pytest
from pydantic import BaseModel

from covey.console.docstrings import read_attribute_docstrings

pytestmark = pytest.mark.unit


class Base(BaseModel):
    """Not an attribute's."""

    size: int = 1
    """Size of it,
    over two lines."""
    colour: str = "red"
    """Colour of the base."""
    bare: int = 2


class Derived(Base):
    colour: str = "blue"
    """Colour of the derived one."""

    def paint(self):
        """Not an attribute's either."""


def test_docstrings__of_bases_too__the_nearest_class_wins():
    assert read_attribute_docstrings(Derived) == {
        "size": "Size of it, over two lines.",
        "colour": "Colour of the derived one.",
    }
    assert read_attribute_docstrings(Base)["colour"] == "Colour of the base."
