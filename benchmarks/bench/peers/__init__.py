"""Other libraries' models of the same shapes, one file each."""

from __future__ import annotations

from depthkit.registry import Registry

PEERS = Registry("peer", "benchmarks.bench.peers")
"""Each kind is a `benchmarks.bench.candidate.Peer`; libraries are imported when a model is built."""
