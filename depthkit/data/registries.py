"""The two axes of the data room."""

from depthkit.registry import Registry

CORPORA = Registry("corpus", "depthkit.data.corpora", "depthkit.data.tasks")
"""Where text or token ids come from, or how they are made up."""

TOKENIZERS = Registry("tokenizer", "depthkit.data.tokenizers")
"""How text becomes token ids."""
