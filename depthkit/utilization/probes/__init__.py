"""The probes, one registered file each; they share one sweep."""

from depthkit.registry import Registry

PROBES = Registry("probe", "depthkit.utilization.probes")
