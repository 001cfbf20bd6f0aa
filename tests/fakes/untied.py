"""A small model whose head is not its embedding."""

import torch
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel


def build_untied() -> PreTrainedModel:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=31, hidden_size=16, intermediate_size=24, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=1, tie_word_embeddings=False,
    )  # fmt: skip
    return LlamaForCausalLM(config)
