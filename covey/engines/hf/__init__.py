"""The reference engine on Hugging Face transformers."""
