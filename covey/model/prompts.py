"""Prompts in the form that the model expects: raw text, or the task's prompt in its chat template.

All parties build the same prompts. The pool's parameters select the format (`PromptFormat`) and pin the template by its
hash. A task's prompt never adds a control token to a chat prompt, because its characters are encoded as characters,
whatever they spell.
"""

import json
import re
from collections.abc import Collection, Mapping, Sequence, Set
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import pairwise
from typing import Literal, Self

from pydantic import JsonValue

from covey.errors import OperatorError, ProtocolError
from covey.model.templates import render_chat
from covey.model.text import Tokenizer, decode_completion
from covey.protocol.canonical import sha256
from covey.protocol.ids import Hash
from covey.protocol.params import ModelParams
from covey.sandbox import ATTEMPTS, CallLimits, Sandbox, SandboxError

RENDER_SECONDS = 10.0
"""Timeout in seconds of one rendering of a template that has not been checked yet."""
RENDER_BYTES = 256 << 20
"""Memory limit in bytes of the rendering process, in addition to the interpreter's own memory."""
_RESERVED = frozenset(
    {
        "add_generation_prompt", "chat_template", "continue_final_message", "conversation", "documents", "max_length",
        "messages", "padding", "return_assistant_tokens_mask", "return_dict", "return_tensors",
        "sanitize_control_tokens", "tokenize", "tokenizer_kwargs", "tools", "truncation",
    }
)  # fmt: skip
"""Variable names that the rendering itself uses."""
_PROBE, _PROBE_SYSTEM, _PROBE_ANSWER = "How much is 2 + 3?", "Answer with a number.", "It is 5."
_TEMPLATE_FIX = "Correct the model's chat template, or choose another model"
_PRIVATE_USE = range(0xE000, 0xF900)
"""Code points of private-use characters, which ordinary text does not contain.

One of them marks borders in a string.
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class PromptFormat:
    """How the prompt of a task becomes the tokens that the model reads.

    Example: PromptFormat(kind="chat", variables={"enable_thinking": False}).
    """

    kind: Literal["raw", "chat"] = "raw"
    """"raw" for the text and a newline, or "chat" for the chat template of the policy's tokenizer."""
    variables: Mapping[str, JsonValue] = field(default_factory=dict)
    """Values that the template can read in addition to the messages, by name."""

    @classmethod
    def of(cls, params: ModelParams) -> Self:
        """Return the format of a pool. Raises OperatorError("bad_template_kwargs") if a variable's name is reserved."""
        reserved = sorted(_RESERVED & params.chat_template_kwargs.keys())
        if reserved:
            raise OperatorError(
                "bad_template_kwargs",
                f"chat_template_kwargs sets reserved variables: {', '.join(reserved)}",
                fix="Remove them from chat_template_kwargs",
            )
        return cls(kind=params.prompt_format, variables=params.chat_template_kwargs)


RAW = PromptFormat()


def encode_prompt(tokenizer: Tokenizer, question: str, *, system: str = "", format: PromptFormat) -> list[int]:
    """Return the tokens of a prompt with the user message `question` and the optional system message `system`.

    A raw prompt is the beginning-of-sequence token (if the tokenizer has one) and both texts, each followed by a
    newline. A chat prompt is the result of the tokenizer's chat template for a system message and a user message,
    with the assistant's turn opened.

    Raises ProtocolError("policy_mismatch") if the prompt has no tokens or there is no template. Raises
    ProtocolError("unsafe_prompt") if the message would add or remove a control token. Also raises the errors of
    `render_chat`.
    """
    if format.kind == "chat":
        tokens = _encode_chat(tokenizer, question, system, format.variables)
    else:
        tokens = tokenizer.encode(f"{system}\n{question}\n" if system else question + "\n", add_special_tokens=False)
        if tokenizer.bos_token_id is not None:
            tokens = [tokenizer.bos_token_id, *tokens]
    if not tokens:
        raise ProtocolError("policy_mismatch", "the policy's tokenizer returned no tokens for a prompt")
    return tokens


def decode_question(tokenizer: Tokenizer, prompt: Sequence[int], *, format: PromptFormat) -> str:
    """Return the text of a prompt up to the end of its user message, including text that the format puts before it."""
    text = decode_completion(tokenizer, prompt, frozenset())
    template = _get_template(tokenizer) if format.kind == "chat" else None
    if template is None:
        return text
    rendered = render_chat(template, _build_messages(_PROBE, ""), _collect_variables(tokenizer, format.variables))
    return text.removesuffix(rendered.rpartition(_PROBE)[2])


def compute_template_hash(tokenizer: Tokenizer) -> Hash | None:
    """Return the SHA-256 of the chat template's UTF-8 text. None if the tokenizer has no template."""
    template = _get_template(tokenizer)
    return None if template is None else sha256(template.encode("utf-8", "surrogatepass"))


def require_stable_template(
    tokenizer: Tokenizer,
    format: PromptFormat,
    *,
    has_system: bool = False,
    unopened: Collection[str] = (),
    seconds: float = RENDER_SECONDS,
) -> None:
    """Check that the tokenizer's chat template renders the same text on every machine and every day.

    `format` contains the variables. `has_system` says whether the pool's prompts have a system message. `unopened`
    contains the thinking tags that no prompt may end with, because completions without the closing tag are graded.
    `seconds` is the timeout of one rendering, which runs in a subprocess.

    Raises OperatorError("no_chat_template") if there is no template. Raises OperatorError("broken_template") if it does
    not compile, does not render in time or omits the user message. Raises OperatorError("unstable_template") if the
    text depends on the date, on chance or on the version of transformers. Raises OperatorError("thought_opened") if a
    prompt ends with one of `unopened`.
    """
    template = _get_template(tokenizer)
    if template is None:
        raise OperatorError(
            "no_chat_template",
            "the model's tokenizer has no chat template",
            fix='Choose a chat model, or set prompt_format = "raw"',
        )
    variables = _collect_variables(tokenizer, format.variables)
    texts = ("", _PROBE_SYSTEM) if has_system else ("",)
    limits = CallLimits.for_cpu(seconds, memory_bytes=RENDER_BYTES)
    with Sandbox("covey.model.templates:build_renderer", limits=limits) as sandbox:
        for system in texts:
            messages = _build_messages(_PROBE, system)
            payload = json.dumps({"template": template, "messages": messages, "variables": variables})
            try:
                rendered = sandbox.call(payload.encode(), attempts=ATTEMPTS).decode("utf-8", "surrogatepass")
            except SandboxError as error:
                message = f"the chat template was not rendered within {seconds} s and {RENDER_BYTES >> 20} MiB"
                raise _explain("broken_template", message) from error
            except ProtocolError as error:
                raise _explain(error.code, error.message) from error
            for text in filter(None, (_PROBE, system)):
                if text not in rendered:
                    raise _explain("broken_template", f"the chat template omits the text {text!r}")
            for tag in unopened:
                if rendered.rstrip().endswith(tag):
                    raise _explain(
                        "thought_opened", f"the chat template opens the thinking tag {tag} at the end of every prompt"
                    )
            theirs = tokenizer.apply_chat_template(
                messages, tokenize=False, add_generation_prompt=True, **format.variables
            )
            if theirs != rendered:
                raise OperatorError(
                    "unstable_template",
                    "the chat template renders a different text in another process",
                    fix=_TEMPLATE_FIX,
                )


def find_turn_end(tokenizer: Tokenizer, format: PromptFormat) -> tuple[str, int] | None:
    """Return text and id of the control token that the chat template writes after an answer.

    None if the template writes another text there, or does not render answers. Call `require_stable_template` first.
    """
    template = _get_template(tokenizer)
    if template is None:
        return None
    messages = [*_build_messages(_PROBE, ""), {"role": "assistant", "content": _PROBE_ANSWER}]
    try:
        rendered = render_chat(template, messages, _collect_variables(tokenizer, format.variables), is_open=False)
    except ProtocolError:
        return None
    _, found, after = rendered.rpartition(_PROBE_ANSWER)
    controls = _find_controls(tokenizer, template).items() if found else ()
    ends = [(text, number) for text, number in controls if after.lstrip().startswith(text)]
    return max(ends, key=lambda end: len(end[0]), default=None)


def require_pinned_template(params: ModelParams) -> None:
    """Check that a chat pool pins the hash of its template.

    Raises OperatorError("no_template_hash") if it does not, and the errors of `PromptFormat.of`.
    """
    PromptFormat.of(params)
    if params.prompt_format == "chat" and params.chat_template_hash is None:
        raise OperatorError(
            "no_template_hash",
            'the pool has prompt_format = "chat" but no chat_template_hash',
            fix="Create the pool with covey pool create FILE --model MODEL, which sets chat_template_hash",
        )


def require_policy_format(tokenizer: Tokenizer, end_tokens: Set[int], params: ModelParams) -> None:
    """Check that a policy has the chat template and the end tokens that its pool pins.

    Raises ProtocolError("policy_mismatch") if not, because its prompts or the ends of its completions would differ from
    the pool's.
    """
    fix = "Publish policies based on the pool's first model, or create another pool with covey pool create --model"
    if params.chat_template_hash is not None and compute_template_hash(tokenizer) != params.chat_template_hash:
        template_hash = compute_template_hash(tokenizer) or "none"
        message = (
            f"the policy's chat template has the hash {template_hash}, but the pool requires "
            f"{params.chat_template_hash}"
        )
        raise ProtocolError("policy_mismatch", f"{message}. {fix}")
    if params.end_tokens and end_tokens != set(params.end_tokens):
        message = f"the policy's end tokens are {sorted(end_tokens)}, but the pool requires {sorted(params.end_tokens)}"
        raise ProtocolError("policy_mismatch", f"{message}. {fix}")


def _encode_chat(tokenizer: Tokenizer, question: str, system: str, named: Mapping[str, JsonValue]) -> list[int]:
    """Return the tokens of a chat prompt. Control tokens that occur in the messages are encoded as plain characters.

    A border after the first character of such a control token hides it from the tokenizer, because the pieces
    between borders are encoded one by one. Prompts without such control tokens have no border.
    """
    template = _get_template(tokenizer)
    if template is None:
        raise ProtocolError("policy_mismatch", "the policy's tokenizer has no chat template")
    variables, controls = _collect_variables(tokenizer, named), _find_controls(tokenizer, template)
    border = next((chr(each) for each in _PRIVATE_USE if chr(each) not in question + system + template), None)
    if border is None:
        raise ProtocolError(
            "unsafe_prompt", "the prompt contains every private-use character, so its control tokens cannot be escaped"
        )

    def encode(messages: Sequence[Mapping[str, str]]) -> list[int]:
        pieces = render_chat(template, messages, variables).split(border)
        return [token for piece in pieces if piece for token in tokenizer.encode(piece, add_special_tokens=False)]

    pattern = _compile_starts(tuple(sorted(controls)))
    tokens = encode(_build_messages(*(_divide(text, pattern, border) for text in (question, system))))
    # The template's own control tokens are those of a prompt for one letter. The question must not add or remove any.
    ids = set(controls.values())
    ordinary = encode(_build_messages("a", "a" if system else ""))
    if [token for token in tokens if token in ids] != [token for token in ordinary if token in ids]:
        raise ProtocolError("unsafe_prompt", "the question text adds or removes control tokens in its prompt")
    return tokens


def _divide(text: str, pattern: re.Pattern[str], border: str) -> str:
    cuts = [0, *(match.start() + 1 for match in pattern.finditer(text)), len(text)]
    return border.join(text[start:end] for start, end in pairwise(cuts))


@lru_cache(maxsize=8)
def _compile_starts(controls: tuple[str, ...]) -> re.Pattern[str]:
    """Return a pattern that matches, with zero width, at each start of a control token, even inside another one."""
    return re.compile(f"(?={'|'.join(map(re.escape, controls))})" if controls else "(?!)")


def _find_controls(tokenizer: Tokenizer, template: str) -> dict[str, int]:
    """Return the ids of the tokens that a message must not add, by text.

    They are the special tokens and the added tokens in the template. Runs of whitespace are ordinary text and not
    included.
    """
    added = tokenizer.added_tokens_decoder.items()
    return {
        each.content: number
        for number, each in added
        if each.content and (each.special or (each.content in template and not each.content.isspace()))
    }


def _get_template(tokenizer: Tokenizer) -> str | None:
    template = tokenizer.chat_template
    if isinstance(template, Mapping):
        template = template.get("default")
    return template if isinstance(template, str) else None


def _collect_variables(tokenizer: Tokenizer, named: Mapping[str, JsonValue]) -> dict[str, object]:
    """Return the special tokens' texts, by names such as `bos_token`, and the pool's own variables."""
    return {**{name: str(text) for name, text in tokenizer.special_tokens_map.items()}, **named}


def _build_messages(question: str, system: str) -> list[dict[str, str]]:
    messages = [{"role": "system", "content": system}] if system else []
    return [*messages, {"role": "user", "content": question}]


def _explain(code: str, message: str) -> OperatorError:
    if code == "unstable_template":
        return OperatorError(
            code,
            message,
            fix="Set the variable that replaces it in chat_template_kwargs, for example date_string, or choose another"
            " model",
        )
    if code == "thought_opened":
        fix = "Set thinking_required = true in the environment's options, so that an unclosed thought earns no reward"
        return OperatorError(code, message, fix=fix)
    return OperatorError(code, message, fix=_TEMPLATE_FIX)
