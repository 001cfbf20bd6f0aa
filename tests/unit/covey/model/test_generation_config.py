"""End tokens come from a policy's folder, and a trainer's policies keep the generation configuration."""

import json
import shutil
from pathlib import Path

import pytest

from covey.errors import OperatorError
from covey.model.generation_config import GENERATION_FILE, MAX_BYTES, MAX_END_TOKENS, get_end_tokens, read_end_tokens
from covey.model.policy_files import describe_policy, load_end_tokens, load_model, load_tokenizer, save_policy
from covey.model.tiny import tiny_folder
from tests.fakes.chat import END_OF_TEXT, IM_END, build_chat_tokenizer, write_chat_model

pytestmark = pytest.mark.unit
TOKENIZER = build_chat_tokenizer()


def write(folder: Path, text: str) -> Path:
    (folder / GENERATION_FILE).write_text(text)
    return folder


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"eos_token_id": 7}', {7}),
        ('{"eos_token_id": [7]}', {7}),
        ('{"eos_token_id": [0, 2, 0]}', {0, 2}),
        ('{"eos_token_id": null}', {IM_END}),
        ('{"temperature": 0.6}', {IM_END}),
    ],
)
def test_read_end_tokens__valid_file__names_them_or_leaves_them_to_the_tokenizer(
    tmp_path: Path, text: str, expected: set[int]
) -> None:
    assert read_end_tokens(write(tmp_path, text), TOKENIZER) == expected


def test_read_end_tokens__no_file__is_that_of_the_tokenizer(tmp_path: Path) -> None:
    assert read_end_tokens(tmp_path, TOKENIZER) == {IM_END}
    assert read_end_tokens(tiny_folder(), load_tokenizer(tiny_folder())) == {1}


@pytest.mark.parametrize(
    "text",
    [
        '{"eos_token_id": []}',
        '{"eos_token_id": "2"}',
        '{"eos_token_id": true}',
        '{"eos_token_id": [-1]}',
        '{"eos_token_id": [2.0]}',
        '{"eos_token_id": {"0": 2}}',
        json.dumps({"eos_token_id": list(range(MAX_END_TOKENS + 1))}),
        "[2]",
        "{",
        "[" * 100_000,
        " " * (MAX_BYTES + 1),
    ],
)
def test_load_end_tokens__invalid_file__raises_model_unavailable(tmp_path: Path, text: str) -> None:
    with pytest.raises(OperatorError, match="model_unavailable"):
        load_end_tokens(write(tmp_path, text), TOKENIZER)


def test_save_policy__model_with_a_generation_configuration__keeps_it_and_its_bytes(tmp_path: Path) -> None:
    source = write_chat_model(tmp_path / "source", ends=(END_OF_TEXT, IM_END))
    for before, after in (("source", "once"), ("once", "twice")):
        model, tokenizer = load_model(tmp_path / before, "float32"), load_tokenizer(tmp_path / before)
        assert get_end_tokens(model, tokenizer) == {END_OF_TEXT, IM_END}
        save_policy(model, tokenizer, tmp_path / after, "bfloat16")
        assert load_end_tokens(tmp_path / after, tokenizer) == {END_OF_TEXT, IM_END}
    once, twice = tmp_path / "once", tmp_path / "twice"
    expected = {"do_sample": True, "eos_token_id": [END_OF_TEXT, IM_END], "temperature": 0.6, "top_k": 20}
    assert json.loads((once / GENERATION_FILE).read_text()) == expected
    assert describe_policy(once) == describe_policy(twice)
    assert GENERATION_FILE in describe_policy(once)
    assert (once / "model.safetensors").read_bytes() == (twice / "model.safetensors").read_bytes()
    assert (once / "chat_template.jinja").read_bytes() == (source / "chat_template.jinja").read_bytes()


def test_save_policy__model_without_one__writes_none_and_removes_an_old_one(tmp_path: Path) -> None:
    write_chat_model(tmp_path / "source", ends=None)
    model, tokenizer = load_model(tmp_path / "source", "float32"), load_tokenizer(tmp_path / "source")
    assert get_end_tokens(model, tokenizer) == {IM_END}
    (tmp_path / "saved").mkdir()
    save_policy(model, tokenizer, write(tmp_path / "saved", '{"eos_token_id": 7}'), "bfloat16")
    assert not (tmp_path / "saved" / GENERATION_FILE).exists()


def test_save_policy__tiny_model__has_the_shipped_files(tmp_path: Path) -> None:
    shutil.copytree(tiny_folder(), tmp_path / "source")
    model, tokenizer = load_model(tmp_path / "source", "float32"), load_tokenizer(tmp_path / "source")
    save_policy(model, tokenizer, tmp_path / "saved", "bfloat16")
    assert {path.name for path in (tmp_path / "saved").iterdir()} == {path.name for path in tiny_folder().iterdir()}
