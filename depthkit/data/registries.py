"""The two axes of the data room."""

from depthkit.registry import Registry

CORPORA = Registry("corpus", "depthkit.data.corpora")
"""Where text or token ids come from."""

TOKENIZERS = Registry("tokenizer", "depthkit.data.tokenizers")
"""How text becomes token ids."""
