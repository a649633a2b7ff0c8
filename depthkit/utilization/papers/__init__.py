"""The aggregations that papers publish, one registered file each: `preset=paper:NAME`.

A paper is a class with the probes it needs and what it makes of their results; it is built as
`component(config).aggregate(found)`. What depthkit does not measure of it is in `left_out`.
"""

from depthkit.registry import Registry

PREFIX = "paper:"
PAPERS = Registry("paper", "depthkit.utilization.papers")
