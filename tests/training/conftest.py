"""Tiny runs: 2 layers of width 16 on 1,200 bytes, so that ten steps cross an epoch."""

import numpy as np
import pytest

from depthkit import config as configs
from depthkit.data import open_data
from depthkit.model import Transformer
from depthkit.training.trainer import Trainer
from tests.models import model_dict


@pytest.fixture(scope="session")
def corpus(tmp_path_factory):
    """A .npy file of byte ids with structure to learn."""
    path = tmp_path_factory.mktemp("corpus") / "ids.npy"
    text = "".join(f"the {i % 7} of {i % 5} begat the {i % 3}; " for i in range(60))
    np.save(path, np.frombuffer(text.encode()[:1200], np.uint8).astype("uint16"))
    return path


@pytest.fixture
def mapping(corpus, tmp_path):
    """A run as it would stand in a config file."""

    def build(model=None, data=None, seed=0, **train):
        return {
            "seed": seed,
            "model": model_dict(**{"vocab": None, **(model or {})}),
            "data": {
                "corpus": {"kind": "tokens", "path": str(corpus)},
                "tokenizer": "bytes",
                "sequence_length": 16,
                "cache": str(tmp_path / "cache"),
                **(data or {}),
            },
            "train": {
                **({} if "tokens" in train else {"steps": 12}),
                "batch_size": 4,
                "accumulation": 2,
                "lr": 1e-2,
                "threads": 1,
                "checkpoint_every": 4,
                **train,
            },
        }

    return build


@pytest.fixture
def run(mapping):
    """A validated run."""
    return lambda **kwargs: configs.parse(mapping(**kwargs))


@pytest.fixture
def make_trainer(run):
    """A trainer that has not taken a step."""

    def build(**kwargs):
        config = run(**kwargs)
        data = open_data(config.data, config.seed)
        full = config.with_vocabulary(data.tokenizer.vocab_size)
        return Trainer(full, Transformer(full.model, full.seed), data)

    return build
