"""Every test in this folder needs a GPU, and says so where there is none."""

from pathlib import Path

import pytest

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items):
    import torch

    absent = pytest.mark.skip(reason="needs a CUDA GPU, and there is none")
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.gpu)
            # Compilers and kernel libraries warn about their own affairs.
            item.add_marker(pytest.mark.filterwarnings("default"))
            if not torch.cuda.is_available():
                item.add_marker(absent)
