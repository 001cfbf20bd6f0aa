"""Amounts as pages show them, and texts of peers in the pages of a pool."""

import pytest

from coordinator.pages.templates_engine import render, show_amount
from covey.chain.amounts import TokenUnit

pytestmark = pytest.mark.unit


def test_show_amount__unknown_and_known__have_their_texts():
    assert show_amount(150, TokenUnit(2, "CVT")) == "1.5 CVT"
    assert show_amount(None, TokenUnit(2, "CVT")) == "unknown"


def test_render__texts_of_peers__are_escaped_and_cleaned():
    values = {"pool": 1, "name": "n", "unit": TokenUnit(0, ""), "path": "/", "api_url": "http://api"}
    text = render("error.html", code="bad_one", message='<img onerror="x">\x00\u202e', **values).decode()
    assert "&lt;img onerror=&#34;x&#34;&gt;\ufffd\ufffd" in text
    assert "<small>pool 1</small>" in text
