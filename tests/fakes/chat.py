"""A small chat model in a folder, built like published ones: byte-level BPE, ChatML, two end tokens."""

import json
from pathlib import Path

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

from covey.model.policy_files import save_policy

END_OF_TEXT, IM_START, IM_END, THINK, END_THINK = 0, 1, 2, 3, 4
_SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
_PLAIN = ("<think>", "</think>")
_MERGES = (
    ("Ġ", "t"), ("h", "e"), ("Ġt", "he"), ("i", "n"), ("in", "g"), ("Ċ", "Ċ"), ("u", "s"), ("us", "er"), ("e", "r"),
    ("<", "|"), ("|", ">"), ("Ġ", "Ġ"), ("o", "w"), ("H", "ow"), ("1", "2"), (".", "Ċ"), ("s", "y"), ("|>", "Ċ"),
)  # fmt: skip

CHATML = (
    "{%- if messages[0]['role'] == 'system' %}\n"
    "    {{- '<|im_start|>system\\n' + messages[0]['content'] + '<|im_end|>\\n' }}\n"
    "{%- endif %}\n"
    "{%- for message in messages %}\n"
    "    {%- if message['role'] == 'user' %}\n"
    "        {{- '<|im_start|>user\\n' + message['content'] + '<|im_end|>' + '\\n' }}\n"
    "    {%- endif %}\n"
    "{%- endfor %}\n"
    "{%- if add_generation_prompt %}\n"
    "    {{- '<|im_start|>assistant\\n' }}\n"
    "    {%- if enable_thinking is defined and enable_thinking is false %}\n"
    "        {{- '<think>\\n\\n</think>\\n\\n' }}\n"
    "    {%- endif %}\n"
    "{%- endif %}\n"
)
"""Template that lays out messages as Qwen3's does, including its switch for thinking."""
DATED = (
    "{{- bos_token }}\n"
    "{%- if not date_string is defined %}\n"
    "    {%- if strftime_now is defined %}\n"
    "        {%- set date_string = strftime_now('%d %b %Y') %}\n"
    "    {%- else %}\n"
    "        {%- set date_string = '26 Jul 2024' %}\n"
    "    {%- endif %}\n"
    "{%- endif %}\n"
    "{%- if messages[0]['role'] == 'system' %}\n"
    "    {%- set system_message = messages[0]['content'] | trim %}\n"
    "    {%- set messages = messages[1:] %}\n"
    "{%- else %}\n"
    "    {%- set system_message = '' %}\n"
    "{%- endif %}\n"
    "{{- '<|im_start|>system\\nToday Date: ' + date_string + '\\n\\n' + system_message + '<|im_end|>' }}\n"
    "{%- for message in messages %}\n"
    "    {{- '<|im_start|>' + message['role'] + '\\n\\n' + message['content'] | trim + '<|im_end|>' }}\n"
    "{%- endfor %}\n"
    "{%- if add_generation_prompt %}\n"
    "    {{- '<|im_start|>assistant\\n\\n' }}\n"
    "{%- endif %}\n"
)
"""Template that takes the date from its caller or from the clock, as Llama 3's does."""


def build_chat_tokenizer(template: str | None = CHATML) -> PreTrainedTokenizerFast:
    """Build a tokenizer with three special tokens, two added text tokens, 256 bytes and a few merges."""
    vocabulary = {name: number for number, name in enumerate((*_SPECIAL, *_PLAIN))}
    for symbol in sorted(pre_tokenizers.ByteLevel.alphabet()):
        vocabulary[symbol] = len(vocabulary)
    merges = []
    for left, right in _MERGES:
        if left in vocabulary and right in vocabulary:
            merges.append((left, right))
            vocabulary.setdefault(left + right, len(vocabulary))
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in _SPECIAL])
    tokenizer.add_tokens([AddedToken(name, special=False, normalized=False) for name in _PLAIN])
    wrapped = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<|endoftext|>", eos_token="<|im_end|>", pad_token="<|endoftext|>"
    )
    wrapped.chat_template = template
    return wrapped


def write_chat_model(
    folder: Path, template: str | None = CHATML, *, ends: object = (END_OF_TEXT, IM_END), seed: int = 0
) -> Path:
    """Write a policy's folder: tokenizer, template, weights drawn from `seed`, and a generation configuration.

    Its `eos_token_id` is `ends`. None leaves that file out.
    """
    tokenizer = build_chat_tokenizer(template)
    config = Qwen2Config(
        vocab_size=300, hidden_size=64, num_hidden_layers=1, intermediate_size=64, num_attention_heads=2,
        num_key_value_heads=2, max_position_embeddings=512, tie_word_embeddings=True, initializer_range=0.2,
        bos_token_id=END_OF_TEXT, eos_token_id=IM_END, pad_token_id=END_OF_TEXT,
    )  # fmt: skip
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Qwen2ForCausalLM(config)
    save_policy(model, tokenizer, folder, "bfloat16")
    if ends is not None:
        named = {"eos_token_id": list(ends) if isinstance(ends, tuple) else ends}
        text = json.dumps(
            {**named, "do_sample": True, "temperature": 0.6, "top_k": 20, "transformers_version": "4.51.0"}
        )
        (folder / "generation_config.json").write_text(text)
    return folder
