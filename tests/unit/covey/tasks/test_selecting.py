import pytest

from covey.errors import OperatorError
from covey.tasks.checking import check_data_set
from covey.tasks.selecting import select_rows
from tests.fakes.tasks import make_data_set, make_row

pytestmark = pytest.mark.unit

RATES = [0.0, 0.125, 0.25, 0.5, 0.625, 1.0, None]


@pytest.fixture
def folder(tmp_path):
    make_data_set(tmp_path / "all", [make_row(n, solve_rate_q=rate) for n, rate in enumerate(RATES)])
    return tmp_path / "all"


def test_select__rates_at_the_bounds__are_kept(folder, tmp_path):
    digest, counts = select_rows(folder, tmp_path / "some", solve_rate="q", low=0.125, high=0.5)
    assert counts == {"kept": 3, "too_hard": 1, "too_easy": 2, "without_rate": 1}
    report = check_data_set(tmp_path / "some")
    assert report.digest == digest
    assert sum(report.rows.values()) == report.solve_rates["q"] == 3


@pytest.mark.parametrize(("name", "low", "code"), [("other", 0.1, "no_solve_rate"), ("q", 0.3, "nothing_kept")])
def test_select__nothing_to_keep__is_refused_and_nothing_written(folder, tmp_path, name, low, code):
    with pytest.raises(OperatorError, match=code):
        select_rows(folder, tmp_path / "some", solve_rate=name, low=low, high=0.4)
    assert not (tmp_path / "some").exists()
    assert not (tmp_path / "some.part").exists()
