import pytest

from covey.demo.generators import build_preset
from covey.environments.base import refuse_data_sets
from covey.environments.kinds.reasoning_gym import ReasoningGymSource
from covey.errors import OperatorError

pytestmark = pytest.mark.unit


def test_build_preset__short_questions__limits_hold_for_tasks_that_were_not_looked_at():
    preset = build_preset("reasoning_gym:letter_counting", "letter_counting")
    (part,) = preset.parts
    source = ReasoningGymSource(part.options, refuse_data_sets)
    tasks = [source.draw(number) for number in range(1000, 1100)]
    # byte tokens, a newline after the prompt, <bos> and <eos>
    assert max(len(task.question.encode()) for task in tasks) + 2 <= preset.max_prompt_tokens
    assert max(len(source.find_answer(task)) for task in tasks) + 1 <= preset.max_completion_tokens
    assert set(preset.recipe.symbols) >= set("12")
    assert preset.recipe.max_positions >= preset.max_prompt_tokens + preset.max_completion_tokens


@pytest.mark.parametrize(
    ("generator", "words"),
    [("no_such", "no_such"), ("number_sorting", "the demo's model reads")],
)
def test_build_preset__unknown_or_too_long__is_refused(generator, words):
    with pytest.raises(OperatorError) as caught:
        build_preset(f"reasoning_gym:{generator}", generator)
    assert caught.value.code == "bad_demo_environment"
    assert words in caught.value.message
