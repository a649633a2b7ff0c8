"""Torch functions with the signatures of MegaBlocks' compiled parts, where those are absent."""
