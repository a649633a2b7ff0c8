"""One seed, several independent streams of randomness."""

from __future__ import annotations

import hashlib


def stream(seed: int, name: str) -> int:
    """The seed of the named stream (`init`, `data`, `global`), below 2^63 and unrelated to the other streams.

    So drawing more numbers for one purpose never moves another.
    """
    digest = hashlib.sha256(f"{seed}/{name}".encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1
