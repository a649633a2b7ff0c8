"""Models as plans of visits: composition, gains, accounting."""

from depthkit.model.accounting import Accounting, account
from depthkit.model.fold import fold
from depthkit.model.plan import Key, Plan, Visit
from depthkit.model.roles import RoleInfo, Rule
from depthkit.model.schema import BlockConfig, ModelConfig, SegmentConfig
from depthkit.model.transformer import Output, Transformer, unroll

__all__ = [
    "Accounting",
    "BlockConfig",
    "Key",
    "ModelConfig",
    "Output",
    "Plan",
    "RoleInfo",
    "Rule",
    "SegmentConfig",
    "Transformer",
    "Visit",
    "account",
    "fold",
    "unroll",
]
