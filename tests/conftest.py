"""Shared by all tests: one thread, and a garbage collector that leaves what is imported alone."""

import gc

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
