import pytest

from covey.demo.presets import DEFAULT, PRESETS, find_preset
from covey.environments import registry
from covey.environments.mixture import MixtureEnvironment
from covey.errors import OperatorError
from covey.tasks.catalog import DataSetCatalog

pytestmark = pytest.mark.unit


def test_find_preset__names_of_the_help__are_found():
    assert {find_preset(name).name for name in ("math", "code", "mixture", "reasoning_gym:chain_sum", DEFAULT)} == set(
        PRESETS
    )


@pytest.mark.parametrize("name", ["", "maths", "reasoning_gym", "reasoning_gym:", "reasoning_gym:no_such"])
def test_find_preset__another_name__is_refused_with_an_example(name):
    with pytest.raises(OperatorError) as caught:
        find_preset(name)
    assert caught.value.code == "bad_demo_environment"
    assert "--environment" in caught.value.fix


@pytest.mark.parametrize("name", sorted(PRESETS))
def test_build_spec__every_preset__makes_an_environment_whose_data_sets_are_the_same_again(name, tmp_path):
    preset = PRESETS[name]
    first, again = preset.build_spec(tmp_path / "first"), preset.build_spec(tmp_path / "again")
    assert first == again
    assert (tmp_path / "first").exists() is preset.has_data_sets
    environment = registry.load(first, DataSetCatalog([tmp_path / "first"] if preset.has_data_sets else []))
    assert len(environment.held_out(preset.evaluation_prompts)) == preset.evaluation_prompts
    prompts = [environment.prompt(draw) for draw in range(20)]
    assert max(len(prompt.text.encode()) for prompt in prompts) < preset.max_prompt_tokens


def test_mixture__has_both_kinds_in_the_proportion_of_their_weights(tmp_path):
    spec = find_preset("mixture").build_spec(tmp_path)
    environment = registry.load(spec, DataSetCatalog([tmp_path]))
    assert isinstance(environment, MixtureEnvironment)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["code", "math"]
    texts = [environment.prompt(draw).text for draw in range(400)]
    functions = sum("f(x)" in text for text in texts)
    assert 160 < functions < 240
