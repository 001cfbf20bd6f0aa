import json

import pytest

from covey.cli.config import ABSENT, get_settings_class, list_settings
from covey.errors import OperatorError
from worker.config import WorkerConfig

pytestmark = pytest.mark.unit

ROLES = ("coordinator", "worker", "validator", "trainer")


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch):
    for name in ("HOME", "POOL", "BATCH", "DEPLOYMENT", "KEY_FILE", "DATABASE_URL"):
        monkeypatch.delenv(f"COVEY_{name}", raising=False)


def find(settings, name):
    (setting,) = (setting for setting in settings if setting.name == name)
    return setting.value, setting.origin


@pytest.mark.parametrize("role", ROLES)
def test_settings__without_a_file__are_all_there_with_a_sentence(role):
    settings = list_settings(role, None, [])
    kind = get_settings_class(role)
    assert {setting.name.partition(".")[0] for setting in settings} == set(kind.model_fields)
    assert all(setting.sentence.endswith(".") for setting in settings)
    absent = {setting.name for setting in settings if setting.origin == ABSENT}
    assert absent == {name for name, field in kind.model_fields.items() if field.is_required()}
    assert all(setting.origin == "default" for setting in settings if setting.name not in absent)


def test_origin__file_environment_and_set__the_strongest_is_named(tmp_path, monkeypatch):
    file = tmp_path / "worker.toml"
    file.write_text('pool = 1\nbatch = 2\nthreads = 3\nlog_level = "info"\nvllm = { enforce_eager = false }\n')
    monkeypatch.setenv("COVEY_BATCH", "4")
    monkeypatch.setenv("COVEY_THREADS", "5")
    settings = list_settings("worker", file, ["batch=6", "relays=http://a,http://b"])
    assert find(settings, "pool") == (1, f"file {file}")
    assert find(settings, "log_level") == ("info", f"file {file}")
    assert find(settings, "threads") == (5, "environment COVEY_THREADS")
    assert find(settings, "batch") == (6, "--set")
    assert find(settings, "relays") == (["http://a", "http://b"], "--set")
    assert find(settings, "vllm.enforce_eager") == (False, f"file {file}")
    assert find(settings, "vllm.gpu_memory_utilization") == (0.9, "default")
    assert find(settings, "home") == (None, ABSENT)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://host:6379/0", "redis://host:6379/0"),
        ("postgresql+psycopg://user@host/covey", "postgresql+psycopg://user@host/covey"),
        ("postgresql+psycopg://user:hidden@host/covey", "postgresql+psycopg://user:***@host/covey"),
        ("redis://:hidden@host:6379/0", "redis://:***@host:6379/0"),
        ("amqp://user:hi/d@den@host//", "amqp://user:***@host//"),
        ("postgresql://host/covey?user=u&password=hidden&x=1", "postgresql://host/covey?user=u&password=***&x=1"),
        ("s3://bucket/a?secret_access_key=hidden", "s3://bucket/a?secret_access_key=***"),
    ],
)
def test_password__in_a_url__is_masked(url, shown):
    scheme = url.partition(":")[0]
    taken = {"redis": ("nonces_url", "broker_url"), "amqp": ("broker_url",), "s3": ("store_url",)}
    names = taken.get(scheme, ("database_url",))
    settings = list_settings("coordinator", None, [f"{name}={url}" for name in names])
    assert [find(settings, name) for name in names] == [(shown, "--set")] * len(names)


def test_password__in_a_list_of_urls__is_masked():
    settings = list_settings("worker", None, ["relays=http://a:hidden@b,http://c"])
    assert find(settings, "relays") == (["http://a:***@b", "http://c"], "--set")


@pytest.mark.parametrize(
    ("text", "code"),
    [("pool = 0", "pool: "), ("colour = 1", "colour: "), ("pool", "is not valid TOML"), (None, "no_settings_file")],
)
def test_file__wrong__raises_the_error_of_loading_it(tmp_path, command, text, code):
    file = tmp_path / "worker.toml"
    if text is not None:
        needed = 'home = "h"\ndeployment = "d"\nkey_file = "k"\n' + ("" if "pool" in text else "pool = 1\n")
        file.write_text(needed + text)
    with pytest.raises(OperatorError, match=code) as caught:
        WorkerConfig.load(file)
    assert command("config", "show", "worker", "--config", str(file)) == (1, "", f"covey: {caught.value}\n")


def test_command__text_and_json__say_the_same(command):
    text = command("config", "show", "trainer", "--set", "steps=3").out
    shown = json.loads(command("config", "show", "trainer", "--set", "steps=3", "--json").out)
    assert "steps = 3  (--set)\n    Step of the last policy to train" in text
    assert "home  (required, not set)\n" in text
    assert "model.path = none  (default)\n" in text
    assert {"name": "steps", "value": 3, "origin": "--set"}.items() <= shown["settings"][
        [setting["name"] for setting in shown["settings"]].index("steps")
    ].items()
    assert text.count("\n    ") == len(shown["settings"])


def test_origin__setting_of_a_table__is_the_file_or_set(tmp_path):
    file = tmp_path / "trainer.toml"
    file.write_text("[loss]\nepsilon = 0.1\nbeta = 0.5\n")
    settings = list_settings("trainer", file, ["loss.epsilon=0.3"])
    assert find(settings, "loss.epsilon") == (0.3, "--set")
    assert find(settings, "loss.beta") == (0.5, f"file {file}")
    assert find(settings, "loss.delta") == (4.0, "default")
    assert find(list_settings("trainer", None, ["loss.epsilon=0.3"]), "loss.epsilon") == (0.3, "--set")
