"""Appending to a file so that what is appended is there whole or not at all."""

from __future__ import annotations

import contextlib
import errno
import os
from pathlib import Path


class Appender:
    """A file that grows at its end; every `write` reaches the operating system before it returns.

    A write that fails, a full disk included, is cut off again, so readers never meet half a record.
    """

    def __init__(self, path: Path):
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path = path
        self._file = open(path, "ab", buffering=0)  # noqa: SIM115 - lives as long as the run

    def write(self, data: bytes) -> None:
        """Append `data`.

        Raises:
            OSError: it could not be written; the file is as it was before.
        """
        size = os.fstat(self._file.fileno()).st_size
        try:
            written = self._file.write(data)
            if written != len(data):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.path))
        except BaseException:
            with contextlib.suppress(OSError):  # the first error is the one to report
                os.ftruncate(self._file.fileno(), size)
            raise

    def flush(self) -> None:
        """Nothing to do: nothing is buffered."""

    def close(self) -> None:
        """Close the file."""
        self._file.close()
