import pytest

from covey.protocol.learning_signs import LearningSign, describe_signs

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("sign", "setting"),
    [
        (LearningSign.TRUNCATED, "max_completion_tokens"),
        (LearningSign.NO_ANSWER, "extraction"),
        (LearningSign.CONSTANT_REWARD, "covey tasks filter"),
        (LearningSign.NO_LIVE_GROUP, "group_size"),
        (LearningSign.ZERO_GRADIENT, "loss.mask_truncated_completions"),
    ],
)
def test_advice__each_sign__names_the_setting_to_look_at(sign: LearningSign, setting: str) -> None:
    assert setting in sign.advice
    assert sign.sentence[0].islower()
    assert not sign.sentence.endswith(".")


def test_describe_signs__any_order__is_that_of_causes_before_effects() -> None:
    signs = {LearningSign.NO_LIVE_GROUP, LearningSign.TRUNCATED}
    text = "most completions are cut at the token limit; no group has rewards that differ"
    assert describe_signs(signs) == text
    assert describe_signs(()) == ""
