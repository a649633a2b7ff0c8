"""The axes of the data room."""

from depthkit.registry import Registry

CORPORA = Registry("corpus", "depthkit.data.corpora", "depthkit.data.tasks")
"""Where text or token ids come from, or how they are made up."""

TOKENIZERS = Registry("tokenizer", "depthkit.data.tokenizers")
"""How text becomes token ids."""

SOURCES = Registry("source", "depthkit.data.sources")
"""Where the records of fine-tuning corpora come from."""

TEMPLATES = Registry("template", "depthkit.data.conversations.templates")
"""How a conversation is written out."""
