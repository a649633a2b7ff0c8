"""What a study reports of one model, and what the names mean."""

from __future__ import annotations

METRICS = {
    "variance_first": "variance of the stream over its features after block 1, mean over tokens",
    "variance_middle": "variance of the stream after block L/2",
    "variance_last": "variance of the stream after the last block",
    "power_exponent": "slope of ln variance on ln l, blocks 2 to L",
    "power_r2": "R2 of the power-law fit",
    "exponential_rate": "slope of ln variance on l, blocks 2 to L",
    "exponential_r2": "R2 of the exponential fit",
    "exponential_minus_power_r2": "R2 of the exponential fit minus R2 of the power law; above 0, growth is "
    "better described as exponential",
    "angle_first": "angle between the states before and after block 1 in radians, mean over tokens",
    "angle_middle": "angle across block L/2",
    "angle_last": "angle across the last block in radians, mean over tokens",
    "jacobian_first": "|J - I| of block 1: Frobenius norm over the square root of its size",
    "jacobian_middle": "|J - I| of block L/2",
    "jacobian_last": "|J - I| of the last block: Frobenius norm over the square root of its size",
    "gradient_first": "norm of the loss gradient over all parameters of block 1",
    "gradient_last": "norm of the loss gradient over all parameters of the last block",
    "gradient_ratio": "gradient_first / gradient_last",
    "gradient_log_ratio": "natural logarithm of gradient_ratio",
}
"""Metric -> definition."""

CURVES = {
    "variance": "variance of the stream",
    "angle": "angle (radians)",
    "jacobian": "|J - I|",
    "gradient": "gradient norm of the block",
}
"""Quantity by block -> label of its axis."""
