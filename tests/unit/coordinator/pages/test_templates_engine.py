"""Values as pages show them."""

import pytest
from markupsafe import Markup

from coordinator.pages.templates_engine import render, show_amount, show_duration, show_time
from covey.chain.amounts import TokenUnit

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


def test_show_amount__unknown_and_known__have_their_texts():
    assert show_amount(150, TokenUnit(2, "CVT")) == "1.5 CVT"
    assert show_amount(None, TokenUnit(2, "CVT")) == "unknown"


def test_render__texts_of_peers__are_escaped_and_cleaned():
    values = {"pool": 1, "name": "n", "unit": TokenUnit(0, ""), "path": "/", "api_url": "http://api"}
    text = render("error.html", code="bad_one", message='<img onerror="x">\x00\u202e', **values).decode()
    assert "&lt;img onerror=&#34;x&#34;&gt;\ufffd\ufffd" in text
    assert Markup("<img").striptags() not in text
