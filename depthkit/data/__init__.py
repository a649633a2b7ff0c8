"""Text to batches: corpora, tokenizers, packing and a resumable order."""

from depthkit.data.batch import Batch
from depthkit.data.config import DataConfig
from depthkit.data.data import Data, open_data
from depthkit.data.registries import CORPORA, TOKENIZERS

__all__ = ["CORPORA", "TOKENIZERS", "Batch", "Data", "DataConfig", "open_data"]
