"""TensorBoard event files, written through TensorBoard's own record format.

Its stock writer writes from a thread, where a full disk ends in a traceback nobody can catch; this one
writes at once, so an error reaches the caller and the file never holds half a record.
"""

from __future__ import annotations

import io
import time
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.record_writer import RecordWriter

from depthkit.training.append import Appender


class EventFile:
    """One event file in `folder`, for the part of a run that starts after `step`.

    Older files of the folder stay; TensorBoard is told to forget what they say past `step`.

    Raises:
        OSError: on a failed write, here and in every method.
    """

    def __init__(self, folder: Path, step: int):
        now = time.time()
        self._records = RecordWriter(Appender(folder / f"events.out.tfevents.{time.time_ns()}.depthkit"))
        start = SessionLog(status=SessionLog.START)
        try:
            self._write(Event(wall_time=now, file_version="brain.Event:2"))
            self._write(Event(wall_time=now, step=step + 1, session_log=start))
        except BaseException:
            self.close()
            raise

    def scalars(self, values: dict[str, float | None], step: int) -> None:
        """Add one point to each named curve; None is left out."""
        present = {tag: value for tag, value in values.items() if value is not None}
        entries = [Summary.Value(tag=tag, simple_value=value) for tag, value in present.items()]
        self._write(Event(wall_time=time.time(), step=step, summary=Summary(value=entries)))

    def image(self, tag: str, pixels: NDArray[np.uint8], step: int) -> None:
        """Add an image, `[height, width, 3]`."""
        png = io.BytesIO()
        Image.fromarray(pixels).save(png, format="png")
        height, width, _ = pixels.shape
        held = Summary.Image(height=height, width=width, colorspace=3, encoded_image_string=png.getvalue())
        entry = Summary.Value(tag=tag, image=held)
        self._write(Event(wall_time=time.time(), step=step, summary=Summary(value=[entry])))

    def close(self) -> None:
        """Close the file."""
        self._records.close()

    def _write(self, event: Event) -> None:
        self._records.write(event.SerializeToString())
