"""Tasks that need no download, one registered file each."""

from depthkit.registry import Registry

TASKS = Registry("task", "depthkit.interop.lm_eval.tasks")
