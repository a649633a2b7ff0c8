"""What several tests read from run folders."""

import hashlib
from pathlib import Path

from depthkit.training import metrics


def losses(folder, event="train", key="loss"):
    return {row["step"]: row[key] for row in metrics.read(Path(folder) / "metrics.jsonl", event)}


def digests(folder, step):
    root = Path(folder) / "checkpoints" / f"step_{step:08d}"
    names = ("model.safetensors", "optim.safetensors")
    return [hashlib.sha256((root / name).read_bytes()).hexdigest() for name in names]
