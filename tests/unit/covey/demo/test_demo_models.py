import itertools
from dataclasses import replace

import pytest

from covey.demo import demo_models
from covey.demo.demo_models import compute_name, find_cache, list_examples, prepare_policy
from covey.demo.presets import DEFAULT, PRESETS, find_preset
from covey.environments import registry
from covey.environments.base import Reply
from covey.errors import OperatorError
from covey.tasks.catalog import DataSetCatalog

pytestmark = pytest.mark.unit


@pytest.fixture(autouse=True)
def cache(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache/covey/demo-models"


def make_model(reward):
    def make(preset, recipe, folder, say):
        folder.mkdir()
        (folder / "model.safetensors").write_text(preset.name)
        return reward

    return make


def test_find_cache__relative_name__is_ignored(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert find_cache() == tmp_path / ".cache/covey"


def test_prepare_policy__default__is_the_shipped_model(cache):
    assert prepare_policy(find_preset(DEFAULT), print) is None
    assert not cache.exists()


def test_prepare_policy__second_time__is_read_from_the_cache(monkeypatch, cache):
    said = []
    monkeypatch.setattr(demo_models, "make_policy", make_model(0.5))
    made = prepare_policy(find_preset("math"), said.append)
    monkeypatch.setattr(demo_models, "make_policy", None)
    assert prepare_policy(find_preset("math"), said.append) == made
    assert [path.name for path in cache.iterdir()] == [made.name]
    assert (made / "model.safetensors").read_text() == "math"
    assert "a mean reward of 0.500" in said[1]


@pytest.mark.parametrize("reward", [0.0, 0.9])
def test_prepare_policy__nothing_to_learn_or_nothing_left__is_refused_and_not_kept(monkeypatch, cache, reward):
    monkeypatch.setattr(demo_models, "make_policy", make_model(reward))
    with pytest.raises(OperatorError, match="warm_start_failed"):
        prepare_policy(find_preset("math"), print)
    assert list(cache.iterdir()) == []


def test_prepare_policy__cache_cannot_be_written__names_the_setting(tmp_path):
    (tmp_path / "cache").write_text("a file")
    with pytest.raises(OperatorError, match="no_folder") as caught:
        prepare_policy(find_preset("math"), print)
    assert "XDG_CACHE_HOME" in caught.value.fix


def test_compute_name__whatever_the_model_is_made_from__changes_it():
    preset = find_preset("math")
    longer = replace(preset, max_completion_tokens=13)
    noisier = replace(preset, recipe=replace(preset.recipe, noise=0.36))
    names = [compute_name(each, each.recipe) for each in (preset, longer, noisier, find_preset("code"))]
    assert len(set(names)) == 4
    assert compute_name(preset, preset.recipe) == names[0]


@pytest.mark.parametrize("name", sorted(set(PRESETS) - {DEFAULT}))
def test_list_examples__every_completion__earns_the_whole_reward(name, tmp_path):
    preset = find_preset(name)
    spec = preset.build_spec(tmp_path)
    environment = registry.load(spec, DataSetCatalog([tmp_path]))
    for text, answer in itertools.islice(list_examples(preset, environment), 8):
        prompt = next(p for p in _prompts(environment) if p.text == text)
        reply = prompt.build_reply(answer, finished=True, tokens=len(answer) + 1)
        assert isinstance(reply, Reply)
        assert environment.grade(reply).reward == 1.0
        assert len(answer) < preset.max_completion_tokens


def _prompts(environment):
    return (environment.prompt(draw) for draw in itertools.count(demo_models.SEED << 32))
