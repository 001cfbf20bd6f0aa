"""A pool's file for a chat model: values that the model fills in, and errors before anything is sent."""

from pathlib import Path

import pytest

from covey.console import account, pool_file
from covey.errors import OperatorError, ProtocolError
from covey.model.tiny import tiny_folder
from covey.protocol.canonical import sha256
from tests.fakes.chat import CHATML, END_OF_TEXT, IM_END, write_chat_model
from tests.fakes.tasks import make_data_set, make_row
from tests.unit.covey.console.test_pool_file import ALICE, POOL_FILE

pytestmark = pytest.mark.unit
PINNED = sha256(CHATML.encode())
CHAT = '[params.model]\nprompt_format = "chat"\n'


@pytest.fixture(autouse=True)
def checked(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Record whether questions have a system text, for each template check, which runs without its subprocess here."""
    found: list[bool] = []
    monkeypatch.setattr(
        "covey.model.prompts.require_stable_template", lambda *_, has_system, **__: found.append(has_system)
    )
    return found


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_chat_model(tmp_path_factory.mktemp("chat") / "model")


def write(folder: Path, more: str) -> Path:
    file = folder / "pool.toml"
    file.write_text(POOL_FILE + more)
    return file


def test_read_pool_file__chat_with_a_model__pins_its_template_and_end_tokens(tmp_path, model, checked) -> None:
    _, _, params = account.read_pool_file(write(tmp_path, CHAT), ALICE, model=model)
    assert (params.model.chat_template_hash, params.model.end_tokens) == (PINNED, (END_OF_TEXT, IM_END))
    assert checked == [False]
    filled = f'{CHAT}chat_template_hash = "{PINNED}"\nend_tokens = [{END_OF_TEXT}, {IM_END}]\n'
    assert account.read_pool_file(write(tmp_path, filled), ALICE)[2] == params


def test_read_pool_file__raw_with_a_model__pins_its_end_tokens_alone(tmp_path, checked) -> None:
    _, _, params = account.read_pool_file(write(tmp_path, ""), ALICE, model=tiny_folder())
    assert (params.model.chat_template_hash, params.model.end_tokens, checked) == (None, (1,), [])


def test_read_pool_file__chat_without_hash_and_model__is_refused(tmp_path) -> None:
    with pytest.raises(OperatorError, match=r"no_template_hash: .*--model"):
        account.read_pool_file(write(tmp_path, CHAT), ALICE)


def test_read_pool_file__variable_that_the_rendering_sets__is_refused(tmp_path) -> None:
    text = f'{CHAT}chat_template_hash = "{PINNED}"\nchat_template_kwargs = {{ tools = [] }}\n'
    with pytest.raises(OperatorError, match="bad_template_kwargs"):
        account.read_pool_file(write(tmp_path, text), ALICE)


@pytest.mark.parametrize("pinned", [f'chat_template_hash = "{sha256(b"x")}"', "end_tokens = [2]"])
def test_read_pool_file__model_that_is_not_what_the_file_pins__is_refused(tmp_path, model, pinned: str) -> None:
    with pytest.raises(ProtocolError, match="policy_mismatch"):
        account.read_pool_file(write(tmp_path, CHAT + pinned), ALICE, model=model)


def test_pin_model__no_chat_model__is_refused(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    file = write(tmp_path, CHAT)
    params = pool_file.build_params(file, pool_file.read_document(file), {})
    with pytest.raises(OperatorError, match="no_chat_template"):
        pool_file.pin_model(params, tiny_folder())


@pytest.mark.parametrize("ends", [(END_OF_TEXT,), (END_OF_TEXT, IM_END)])
def test_pin_model__turn_end_that_ends_no_completion__is_a_warning(tmp_path, capsys, ends: tuple[int, ...]) -> None:
    """A base model ends texts, not turns, so that all its answers would be cut off."""
    template = "{%- for m in messages %}{{- '<|im_start|>' + m['content'] + '<|im_end|>' }}{%- endfor %}"
    folder = write_chat_model(tmp_path / "model", template, ends=ends)
    file = write(tmp_path, CHAT)
    params = pool_file.build_params(file, pool_file.read_document(file), {})
    assert pool_file.pin_model(params, folder).model.end_tokens == ends
    warned = capsys.readouterr().err
    assert (f"'<|im_end|>' (token {IM_END}), which is not in end_tokens [{END_OF_TEXT}]" in warned) is (len(ends) == 1)
    assert ("eos_token_id" in warned) is (len(ends) == 1)


@pytest.mark.parametrize("kind", ["alone", "mixture"])
def test_read_pool_file__questions_with_a_system_text__have_the_template_tried_with_one(
    tmp_path, model, checked, kind: str
) -> None:
    spelling = '{ name = "spell_backward" }'
    asked = spelling.replace(" }", ', system_prompt = "Be brief." }')
    named = f'kind = "reasoning_gym", options = {asked}'
    if kind == "mixture":
        parts = [f'{{ kind = "reasoning_gym", weight = 1, options = {each} }}' for each in (spelling, asked)]
        named = f'kind = "mixture", options = {{ parts = [{", ".join(parts)}] }}'
    file = write(tmp_path, CHAT)
    file.write_text(file.read_text().replace(f'kind = "reasoning_gym", options = {spelling}', named))
    account.read_pool_file(file, ALICE, model=model)
    assert checked == [True]


def test_read_pool_file__chat_pool_of_a_data_set__reads_its_system_text_with_the_data_set(
    tmp_path, model, checked
) -> None:
    rows = make_data_set(tmp_path / "tasks", [make_row(n) for n in range(40)])
    options = f'{{ dataset = "{rows.digest}", system_prompt = "Be brief." }}'
    file = write(tmp_path, CHAT)
    spelling = 'kind = "reasoning_gym", options = { name = "spell_backward" }'
    file.write_text(file.read_text().replace(spelling, f'kind = "math", options = {options}'))
    _, _, params = account.read_pool_file(file, ALICE, datasets=[tmp_path / "tasks"], model=model)
    assert (params.model.chat_template_hash, checked) == (PINNED, [True])
