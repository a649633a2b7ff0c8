"""How an unknown model is built: its layers, final norm, head, middle states and routers.

Found by structure and data flow in one small forward, not by a table of architectures: which modules are
called in a chain, and which tensor equals which.
"""

from depthkit.utilization.structure.branches import silent
from depthkit.utilization.structure.inside import Inside
from depthkit.utilization.structure.layers import find_layers, layers_at, stored
from depthkit.utilization.structure.structure import Structure, examine, num_ids

__all__ = ["Inside", "Structure", "examine", "find_layers", "layers_at", "num_ids", "silent", "stored"]
