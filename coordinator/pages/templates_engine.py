"""Renders the pages of a pool, whose amounts have the pool's unit."""

from pathlib import Path
from typing import Any

from covey.chain.amounts import TokenUnit, format_amount
from covey.protocol.verdict import Reason
from covey.reporting.page_templates import UNKNOWN, PageTemplates


def render(template: str, **values: Any) -> bytes:
    """Return a page in UTF-8. Example: render("error.html", message="nothing is here")."""
    return _TEMPLATES.render(template, **values)


def show_amount(value: int | None, unit: TokenUnit) -> str:
    """Return an amount with its unit, or "unknown" for None."""
    return UNKNOWN if value is None else format_amount(value, unit)


def show_meaning(reason: str) -> str:
    """Return the sentence that explains a reason by its name."""
    return Reason[reason.upper()].meaning


_TEMPLATES = PageTemplates(
    Path(__file__).parent / "templates", filters={"amount": show_amount, "meaning": show_meaning}
)
