"""Renders pages that a server of this machine shows: those of a pool, and those of local runs.

Every value is escaped, and control characters of peers' texts are replaced before that. `layout.html`, `error.html` and
`page_macros.html` are shared. A server has a `base.html`, which extends the layout and names the pages of its menu.
"""

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any

from jinja2 import ChoiceLoader, Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from covey import __version__
from covey.reporting.html import clean

ASSETS = Path(__file__).parent / "assets"
"""Folder with the style, the icon and the scripts of all pages."""
UNKNOWN = "unknown"
_SHARED = Path(__file__).parent / "templates"


class PageTemplates:
    """Templates of one server. Example: `PageTemplates(folder).render("error.html", message="nothing is here")`."""

    def __init__(self, folder: Path, *, filters: Mapping[str, Callable[..., object]] | None = None) -> None:
        """`folder` has the server's own templates. `filters` are added to those of all servers, by name."""
        self._folder, self._filters = folder, dict(filters or {})

    def render(self, template: str, **values: Any) -> bytes:
        """Return a page in UTF-8."""
        return self._environment.get_template(template).render(**values).encode()

    @cached_property
    def _environment(self) -> Environment:
        environment = Environment(
            loader=ChoiceLoader([FileSystemLoader(self._folder), FileSystemLoader(_SHARED)]),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
            finalize=_clean,
        )
        environment.filters |= _FILTERS | self._filters
        environment.globals["version"] = __version__  # Scripts of another version must not come from a cache.
        return environment


def _clean(value: Any) -> Any:
    """Replace control characters in a text. What a template has made is kept."""
    if value is None:
        return ""
    return clean(value) if isinstance(value, str) and not isinstance(value, Markup) else value


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


_FILTERS: dict[str, Callable[..., object]] = {
    "ago": show_duration,
    "count": lambda value: UNKNOWN if value is None else f"{value:,}",
    "share": lambda value: f"{100 * value:.1f} %",
    "short": lambda text: text if len(text) <= 14 else f"{text[:10]}\u2026",
    "words": lambda text: str(text).replace("_", " ").lower(),
    "when": show_time,
}
