"""Renders pages. Every value is escaped, and control characters of peers' texts are replaced before that."""

from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from covey.chain.amounts import TokenUnit, format_amount
from covey.reporting.html import clean

TEMPLATES = Path(__file__).parent / "templates"
UNKNOWN = "unknown"


def render(template: str, **values: Any) -> bytes:
    """Return a page in UTF-8. Example: render("error.html", message="nothing is here")."""
    return _build_environment().get_template(template).render(**values).encode()


@cache
def _build_environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_clean,
    )
    environment.filters |= {
        "amount": show_amount,
        "ago": show_duration,
        "count": lambda value: UNKNOWN if value is None else f"{value:,}",
        "share": lambda value: f"{100 * value:.1f} %",
        "short": lambda text: text if len(text) <= 14 else f"{text[:10]}\u2026",
        "words": lambda text: str(text).replace("_", " ").lower(),
        "when": show_time,
    }
    return environment


def _clean(value: Any) -> Any:
    """Replace control characters in a text. What a template has made is kept."""
    if value is None:
        return ""
    return clean(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def show_amount(value: int | None, unit: TokenUnit) -> str:
    """Return an amount with its unit, or "unknown" for None."""
    return UNKNOWN if value is None else format_amount(value, unit)


def show_time(seconds: float | None) -> Markup:
    """Return a time in Unix seconds as an element that machines can read, too. None: the word "never"."""
    if seconds is None:
        return Markup("never")
    moment = datetime.fromtimestamp(min(max(seconds, 0.0), 253_402_300_799.0), UTC)
    return Markup('<time datetime="{}">{}</time>').format(
        moment.strftime("%Y-%m-%dT%H:%M:%SZ"), moment.strftime("%Y-%m-%d %H:%M:%S")
    )


def show_duration(seconds: float | None) -> str:
    """Return a duration in its largest fitting unit, for example "5 min". None: the word "never"."""
    if seconds is None:
        return "never"
    for size, name in ((86_400, "d"), (3600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {name}"
    return f"{seconds:.0f} s"
