from pathlib import Path

import pytest
from pydantic import BaseModel, Field, ValidationError

from covey.errors import OperatorError
from covey.runtime.settings import RoleSettings, Settings

pytestmark = pytest.mark.unit


class Example(Settings):
    name: str = "default"
    count: int = Field(default=1, ge=1)
    rate: float = 0.5
    places: tuple[str, ...] = ()
    pair: tuple[float, float] = (0.0, 1.0)


@pytest.fixture
def write(tmp_path):
    def make(text):
        path = tmp_path / "settings.toml"
        path.write_text(text)
        return path

    return make


def test_load__nothing__defaults():
    assert Example.load(None, environment={}) == Example(name="default", count=1)


def test_load__precedence__file_then_environment_then_values(write):
    file = write('name = "file"\ncount = 2\nrate = 0.25')
    environment = {"COVEY_NAME": "environment", "COVEY_COUNT": "3", "PATH": "/bin", "COVEY_ANVIL": "/x"}
    loaded = Example.load(file, {"name": "value", "count": None}, environment)
    assert (loaded.name, loaded.count, loaded.rate) == ("value", 3, 0.25)


class Inner(BaseModel):
    depth: int = 1
    width: int = 1


class Nested(Settings):
    name: str = "default"
    inner: Inner = Inner()


def test_load__dotted_name__overrides_one_setting_of_a_table(write):
    file = write("[inner]\ndepth = 2\nwidth = 3")
    assert Nested.load(file, {"inner.depth": "4"}, {}).inner == Inner(depth=4, width=3)
    assert Nested.load(None, {"inner.width": 5, "name": "x"}, {}) == Nested(name="x", inner=Inner(width=5))
    with pytest.raises(OperatorError, match="name"):
        Nested.load(None, {"name.x": 1}, {})


def test_load__environment__is_read_at_the_call(monkeypatch):
    monkeypatch.setenv("COVEY_NAME", "now")
    assert Example.load(None).name == "now"


def test_load__lists_as_text__split_at_commas(write):
    loaded = Example.load(None, {"pair": "0.9,0.99"}, {"COVEY_PLACES": "http://a,http://b"})
    assert loaded.places == ("http://a", "http://b")
    assert loaded.pair == (0.9, 0.99)
    assert Example.load(write('places = ["a,b"]'), environment={}).places == ("a,b",)
    assert Example.load(None, {"name": "a,b", "places": ""}, {}).model_dump()["name"] == "a,b"


@pytest.mark.parametrize(
    ("text", "values", "environment", "key"),
    [
        ("nmae = 1", {}, {}, "nmae: unknown name; did you mean name?"),
        ("", {"cuont": 2}, {}, "cuont: unknown name; did you mean count?"),
        ("count = 0", {}, {}, "count: Input should be greater"),
        ('count = "many"', {}, {}, "count: Input should be a valid integer"),
        ("", {}, {"COVEY_COUNT": "x"}, "count: Input should be a valid integer"),
        ("", {"pair": "1"}, {}, "pair.1: missing"),
        ("[table]\nx = 1", {}, {}, "table: unknown"),
    ],
)
def test_load__wrong_setting__refused_by_name(write, text, values, environment, key):
    file = write(text)
    with pytest.raises(OperatorError) as caught:
        Example.load(file, values, environment)
    assert f"in {file}:" in caught.value.message
    assert caught.value.code == "bad_settings"
    assert key in caught.value.message
    assert "Example" in caught.value.message
    assert caught.value.fix == (
        f"Correct these settings in {file}, or set them with --set NAME=VALUE or COVEY_NAME=VALUE"
    )


def test_load__unknown_environment_names__are_ignored():
    assert Example.load(None, environment={"COVEY_NMAE": "x", "COVEY_TABLE": "y"}) == Example()


@pytest.mark.parametrize("text", ["= 1", "a = ", "\ufffe[", "a = 1\na = 2"])
def test_load__invalid_toml__refused(write, text):
    with pytest.raises(OperatorError, match="bad_settings"):
        Example.load(write(text), environment={})


def test_load__bytes_that_are_not_text__refused(tmp_path):
    (tmp_path / "x.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(OperatorError, match="is not valid TOML"):
        Example.load(tmp_path / "x.toml", environment={})


def test_load__no_file_or_a_folder__refused(tmp_path):
    with pytest.raises(OperatorError, match=r"no_settings_file: .* does not exist"):
        Example.load(tmp_path / "nothing.toml", environment={})
    with pytest.raises(OperatorError, match=r"no_settings_file: .* cannot be read"):
        Example.load(tmp_path, environment={})


def test_settings__frozen():
    loaded = Example.load(None, environment={})
    with pytest.raises(ValidationError, match="frozen"):
        loaded.name = "other"


def test_role_settings__paths_and_bounds():
    needed = {"home": "h", "pool": "3", "deployment": "d.json", "key_file": "k"}
    loaded = RoleSettings.load(None, needed, {"COVEY_RELAYS": "http://r"})
    assert (loaded.home, loaded.pool, loaded.relays) == (Path("h"), 3, ("http://r",))
    for wrong in ({"pool": 0}, {"threads": 0}, {"wait_seconds": 21}, {"wait_seconds": 0}):
        with pytest.raises(OperatorError, match=next(iter(wrong))):
            RoleSettings.load(None, needed | wrong, {})
    with pytest.raises(OperatorError, match=r"home: missing.*key_file: missing"):
        RoleSettings.load(None, {}, {})


def test_role_settings__list_of_paths__relative_to_the_file_and_split_at_commas(tmp_path):
    file = tmp_path / "role.toml"
    file.write_text('home = "h"\npool = 1\ndeployment = "d.json"\nkey_file = "k"\ndatasets = ["a", "/b"]\n')
    assert RoleSettings.load(file, {}, {}).datasets == (tmp_path / "a", Path("/b"))
    assert RoleSettings.load(file, {}, {"COVEY_DATASETS": "x,y"}).datasets == (Path("x"), Path("y"))
