"""What the command-line entry points share: one message and exit code 2 for anything a user can mend."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable


def run(main: Callable[[], int | None]) -> int:
    """Call `main`; turn user errors and full disks into one line on stderr and exit code 2.

    `ValueError` is the contract for user errors everywhere in depthkit; `OSError` covers files, folders
    and disks. Anything else is our own bug and keeps its traceback.
    """
    warnings.formatwarning = _one_line
    try:
        return main() or 0
    except BrokenPipeError:
        return 0
    except (ValueError, OSError) as error:
        if message := str(error):  # empty where another process has said it
            print(f"error: {message}", file=sys.stderr)
        return 2


def _one_line(
    message: Warning | str, category: type[Warning], filename: str, lineno: int, line: str | None = None
) -> str:
    return f"warning: {message}\n"
