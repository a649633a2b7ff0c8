"""Shared by all tests: one thread, and a garbage collector that leaves what is imported alone."""

import gc
import importlib.util
from pathlib import Path

import pytest


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """A quarter of the time it takes to find all tests is the collector walking over modules that stay."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()


@pytest.fixture(autouse=True, scope="session")
def _one_thread():
    import torch

    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def script():
    """eval.py as a module."""
    spec = importlib.util.spec_from_file_location("eval_script", Path(__file__).parents[1] / "eval.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
