"""Pages, tables and plots: every text is escaped, and every value is drawn at its place."""

import re
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from covey.reporting.html import (
    PlotMark,
    PlotPoint,
    PlotRow,
    PlotSeries,
    build_bar_plot,
    build_details,
    build_interval_plot,
    build_line_plot,
    build_page,
    build_table,
    build_text,
    escape,
)

pytestmark = pytest.mark.unit

HOSTILE = "</pre><script>\"'&\x00\x1b\ud800\u202e"


def parse(markup: str) -> ElementTree.Element:
    return ElementTree.fromstring(f"<root>{markup}</root>")


@given(st.text())
def test_escape__any_text__is_text_of_one_element(text: str) -> None:
    root = parse(build_text(text))
    assert [element.tag for element in root.iter()] == ["root", "pre"]
    kept = "".join(c for c in text if c.isprintable() or c in "\n\t")
    assert [c for c in root[0].text or "" if c in kept] == [*kept]


def test_escape__marks_controls_and_surrogates__are_harmless_and_encodable() -> None:
    assert escape(HOSTILE) == "&lt;/pre&gt;&lt;script&gt;&quot;&#x27;&amp;" + "\ufffd" * 4
    assert escape("a\tb\n\u200bc \u2028\xe9") == "a\tb\n\u200bc \u2028\xe9"
    escape(HOSTILE).encode()


def test_build_page__forbids_scripts_and_requests_and_has_both_themes() -> None:
    page = build_page(HOSTILE, [build_table(["a", "b"], [[HOSTILE, "1"]]), build_details(HOSTILE, [build_text("x")])])
    assert "default-src 'none'" in page
    assert "prefers-color-scheme: dark" in page
    assert "<script" not in page
    assert not re.search(r"https?:|url\(|@import", page)
    page.encode()


def test_build_table__numbers__are_aligned_to_the_right() -> None:
    cells = parse(build_table(["name", "kind", "n"], [["a", "b", "3"]], texts=2)).findall(".//td")
    assert [cell.get("class") for cell in cells] == [None, None, "number"]


def test_build_line_plot__points_and_intervals__are_at_their_places() -> None:
    points = [PlotPoint(x=0, y=0.0, low=0.0, high=0.5), PlotPoint(x=10, y=1.0, low=0.5, high=1.0)]
    series = [PlotSeries(name="a", points=points), PlotSeries(name="<b>", points=[PlotPoint(x=5, y=0.5)])]
    root = parse(build_line_plot(series, title="t", x_label="x", y_label="y"))
    (line, single) = [element.get("points") for element in root.findall(".//polyline")]
    assert line == "64.0,256.0 704.0,12.0"
    assert single == "384.0,134.0"
    assert root.find(".//polygon").get("points") == "64.0,134.0 704.0,12.0 704.0,134.0 64.0,256.0"  # type: ignore[union-attr]
    assert [element.text for element in root.findall("./figure/svg")[-1].iter("text")] == ["<b>"]


def test_build_line_plot__powers_of_two__are_equally_spaced_and_nan_is_left_out() -> None:
    points = [PlotPoint(x=x, y=y) for x, y in ((1, 0.0), (2, float("nan")), (4, 0.5), (16, 1.0))]
    root = parse(
        build_line_plot([PlotSeries(name="a", points=points)], title="t", x_label="k", y_label="y", is_log=True)
    )
    assert root.find(".//polyline").get("points") == "64.0,256.0 384.0,134.0 704.0,12.0"  # type: ignore[union-attr]
    assert build_line_plot([PlotSeries(name="a", points=[])], title="t", x_label="x", y_label="y") == ""


def test_build_line_plot__marks__are_lines_within_the_axis() -> None:
    points = [PlotPoint(x=0, y=0.0), PlotPoint(x=10, y=1.0)]
    marks = [PlotMark(x=5, label="<alarm>"), PlotMark(x=11, label="later")]
    root = parse(
        build_line_plot([PlotSeries(name="a", points=points)], title="t", x_label="x", y_label="y", marks=marks)
    )
    (mark,) = [line for line in root.findall(".//line") if line.get("class") == "mark"]
    assert (mark.get("x1"), mark.get("x2"), mark.findtext("title")) == ("384.0", "384.0", "<alarm>")


def test_build_line_plot__zeros_alone__are_at_the_bottom() -> None:
    points = [PlotPoint(x=x, y=0.0) for x in (0, 1)]
    root = parse(build_line_plot([PlotSeries(name="a", points=points)], title="t", x_label="x", y_label="y"))
    assert root.find(".//polyline").get("points") == "64.0,256.0 704.0,256.0"  # type: ignore[union-attr]


def test_build_interval_plot__rows__have_dots_and_whiskers() -> None:
    rows = [PlotRow(label=HOSTILE, value=0.5, low=0.0, high=1.0), PlotRow(label="b", value=1.0)]
    root = parse(build_interval_plot(rows, title="t", x_label="x"))
    assert [circle.get("cx") for circle in root.findall(".//circle")] == ["462.0", "704.0"]
    (whisker,) = [line for line in root.findall(".//line") if line.get("class", "").startswith("whisker")]
    assert (whisker.get("x1"), whisker.get("x2")) == ("220.0", "704.0")
    assert build_interval_plot([], title="t", x_label="x") == ""


def test_build_bar_plot__bars__have_heights_in_proportion() -> None:
    root = parse(build_bar_plot([("0", 10), ("8", 5), ("16", 0)], title="t", x_label="x", y_label="y"))
    assert [float(bar.get("height", "")) for bar in root.findall(".//rect")] == [244.0, 122.0, 0.0]
    assert build_bar_plot([], title="t", x_label="x", y_label="y") == ""


@pytest.mark.parametrize("values", [[0.0], [5.0, 5.0], [-1e-9, 1e-9], [1e9, -3e12], [0.3, 0.30001]])
def test_plots__any_range__has_few_ticks_and_draws_within_the_frame(values: list[float]) -> None:
    points = [PlotPoint(x=i, y=value) for i, value in enumerate(values)]
    root = parse(build_line_plot([PlotSeries(name="a", points=points)], title="t", x_label="x", y_label="y"))
    places = [tuple(map(float, pair.split(","))) for pair in root.find(".//polyline").get("points").split()]  # type: ignore[union-attr]
    assert all(63 <= x <= 705 and 11 <= y <= 257 for x, y in places)
    assert 2 <= len(root.findall(".//line")) <= 12
