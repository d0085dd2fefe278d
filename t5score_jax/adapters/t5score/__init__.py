"""The module that Hugging Face evaluate loads."""
