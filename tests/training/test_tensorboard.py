import io

import numpy as np
import pytest
from PIL import Image
from tensorboard.backend.event_processing.event_file_loader import RawEventFileLoader
from tensorboard.compat.proto.event_pb2 import Event, SessionLog

from depthkit.training import heatmap
from depthkit.training.run import train
from depthkit.training.tensorboard import EventFile
from tests.training.helpers import losses


def events(folder):
    """All events, read by TensorBoard's own reader, which checks the checksums."""
    found = []
    for path in sorted(folder.iterdir()):
        found += [Event.FromString(raw) for raw in RawEventFileLoader(str(path)).Load()]
    return found


def test_scalars_and_images_are_read_back(tmp_path):
    board = EventFile(tmp_path, 0)
    pixels = np.random.default_rng(0).integers(0, 255, (4, 6, 3)).astype(np.uint8)
    board.scalars({"a": 1.5, "b": None, "c": -2.0}, 3)
    board.image("map", pixels, 4)
    board.close()
    _, _, scalars, image = events(tmp_path)
    assert [(v.tag, v.simple_value) for v in scalars.summary.value] == [("a", 1.5), ("c", -2.0)]
    assert (scalars.step, image.step) == (3, 4)
    png = image.summary.value[0].image.encoded_image_string
    assert np.array_equal(np.asarray(Image.open(io.BytesIO(png))), pixels)


def test_a_resumed_run_tells_tensorboard_to_forget_what_came_later(tmp_path):
    EventFile(tmp_path, 41).close()
    start = events(tmp_path)[1]
    assert (start.step, start.session_log.status) == (42, SessionLog.START)


def test_a_run_writes_curves_and_a_picture_for_every_quantity(run, tmp_path):
    train(run(telemetry_every=3, eval_every=6), tmp_path / "run", quiet=True)
    values = [(e.step, v) for e in events(tmp_path / "run" / "tb") for v in e.summary.value]
    curve = {step: v.simple_value for step, v in values if v.tag == "train/loss"}
    assert curve == pytest.approx(losses(tmp_path / "run"))
    tags = {v.tag for _, v in values}
    assert {"validation/loss", "validation/bits_per_byte", "train/lr", "variance/000", "variance/001"} <= tags
    pictures = {tag.removeprefix("depth x step/") for tag in tags if tag.startswith("depth x step/")}
    assert pictures == {"variance", "write_ratio", "angle", "stream_grad_norm", "layer_grad_norm"}


def test_a_heatmap_has_time_to_the_right_and_depth_upwards():
    history = [[1.0, 10.0], [10.0, 100.0], [100.0, 1000.0]]  # 3 steps of 2 visits
    picture = heatmap.draw(history).astype(int)
    height, width, _ = picture.shape
    top, bottom = picture[height // 4], picture[3 * height // 4]
    columns = [width // 6, width // 2, 5 * width // 6]
    assert (top[columns[:2]] == bottom[columns[1:]]).all()
    dark, bright = picture[-1, 0], picture[0, -1]
    assert dark.tolist() == [68, 1, 84]  # the ends of viridis
    assert bright.tolist() == [253, 231, 37]


def test_what_has_no_logarithm_is_grey():
    picture = heatmap.draw([[1.0, None], [0.0, 2.0]])
    assert tuple(picture[0, 0]) == heatmap.UNDEFINED
    assert tuple(picture[-1, -1]) == heatmap.UNDEFINED
    assert tuple(picture[0, -1]) != heatmap.UNDEFINED


@pytest.mark.parametrize("history", [[[1.0]], [[None, None]], [[3.0] * 300] * 2000])
def test_any_history_can_be_drawn(history):
    height, width, channels = heatmap.draw(history).shape
    assert height <= max(heatmap.HEIGHT, 300)
    assert width <= heatmap.MAX_COLUMNS
    assert channels == 3
