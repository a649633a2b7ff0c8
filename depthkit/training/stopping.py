"""Ctrl-C and SIGTERM as a polite request: finish the step, save, leave."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType
from typing import Any

from depthkit.training.parallel.ranks import Ranks


class StopRequest:
    """Within the block the first SIGINT or SIGTERM sets `signal`; a second one acts as it always does.

    Outside the main thread, where Python delivers no signals, the block changes nothing.
    """

    def __init__(self) -> None:
        self.signal: signal.Signals | None = None
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> StopRequest:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._receive)
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self._restore()

    def asked(self, ranks: Ranks) -> bool:
        """Whether any rank has been asked to stop; all ranks ask together and get the same answer."""
        number = ranks.largest(self.signal or 0)
        if number:
            self.signal = signal.Signals(number)
        return number > 0

    def _receive(self, number: int, _: FrameType | None) -> None:
        self.signal = signal.Signals(number)
        self._restore()

    def _restore(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before = {}
