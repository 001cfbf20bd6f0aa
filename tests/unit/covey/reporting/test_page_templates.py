"""Values as pages show them, and templates that servers share."""

from pathlib import Path

import pytest
from markupsafe import Markup

from covey.reporting.page_templates import PageTemplates, show_duration, show_time

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(None, "never"), (0.4, "0 s"), (119, "119 s"), (120, "2 min"), (7200, "2 h"), (172_800, "2 d")],
)
def test_show_duration__its_size__chooses_the_unit(seconds: float | None, text: str):
    assert show_duration(seconds) == text


def test_show_time__seconds__are_shown_for_people_and_machines():
    assert show_time(86_400.0) == '<time datetime="1970-01-02T00:00:00Z">1970-01-02 00:00:00</time>'
    assert show_time(None) == "never"
    assert "9999-12-31" in show_time(1e300)


def test_render__shared_template__is_in_the_layout_of_the_server_and_escaped(tmp_path: Path):
    (tmp_path / "base.html").write_text('{% extends "layout.html" %}{% set kind, links = "zoo", [("/cats", "Cats")] %}')
    text = PageTemplates(tmp_path).render(
        "error.html", name="n", path="/cats", code="bad_one", message='<img onerror="x">\x00\u202e'
    )
    assert b"<h1>Bad one</h1>" in text
    assert b'<a href="/cats" aria-current="page">Cats</a>' in text
    assert "&lt;img onerror=&#34;x&#34;&gt;\ufffd\ufffd" in text.decode()
    assert Markup("<img").striptags() not in text.decode()


def test_render__filters_of_a_server__are_added(tmp_path: Path):
    (tmp_path / "page.html").write_text("{{ 3 | double }} {{ 1234 | count }}")
    assert PageTemplates(tmp_path, filters={"double": lambda value: 2 * value}).render("page.html") == b"6 1,234"
