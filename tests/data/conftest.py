import json
from pathlib import Path
from typing import Any

import pytest

from depthkit.data import Data, DataConfig, open_data


@pytest.fixture
def opened(tmp_path: Path):
    """Open data with a cache of the test's own."""

    def build(corpus: Any = "kjv", tokenizer: Any = "bytes", seed: int = 0, **fields: Any) -> Data:
        fields = {"cache": str(tmp_path / "cache"), "sequence_length": 16, **fields}
        return open_data(DataConfig(corpus=corpus, tokenizer=tokenizer, **fields), seed)

    return build


@pytest.fixture
def jsonl(tmp_path: Path):
    """Write documents to `name`, one JSON object a line, and return the path."""

    def write(texts: list[str], name: str = "documents.jsonl", field: str = "text") -> str:
        path = tmp_path / name
        path.write_text("".join(json.dumps({field: text}) + "\n" for text in texts))
        return str(path)

    return write


@pytest.fixture
def words() -> list[str]:
    """Sixty short documents, all different, some with characters of several bytes."""
    return [
        f"document {i}: " + "naïve café " * (i % 4) + "plain words " * (i % 7) + "end." for i in range(60)
    ]
