"""Metrics under the interfaces of sacrebleu and Hugging Face's evaluate."""
