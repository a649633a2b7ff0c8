import numpy as np
import torch

from depthkit.data.batch import make_batch

WINDOWS = np.array([[1, 2, 3, 0], [2, 3, -100, -100]])
DOCUMENTS = np.array([[0, 0, 1], [0, 0, -1]])
BYTES = np.array([0, 1, 2, 5])


def test_inputs_targets_and_bytes():
    batch = make_batch(WINDOWS, DOCUMENTS, BYTES, document_mask=True)
    assert batch.ids.tolist() == [[1, 2, 3], [2, 3, 0]]
    assert batch.targets.tolist() == [[2, 3, 0], [3, -100, -100]]
    assert batch.documents is not None
    assert batch.documents.tolist() == DOCUMENTS.tolist()
    assert batch.num_scored == 4
    assert batch.num_bytes == 2 + 5 + 0 + 5
    assert {batch.ids.dtype, batch.targets.dtype, batch.documents.dtype} == {torch.int64}


def test_no_documents_without_a_mask():
    assert make_batch(WINDOWS, DOCUMENTS, BYTES, document_mask=False).documents is None


def test_moving_keeps_the_rest():
    moved = make_batch(WINDOWS, DOCUMENTS, BYTES, document_mask=True).to("meta")
    assert moved.documents is not None
    assert {t.device.type for t in (moved.ids, moved.targets, moved.documents)} == {"meta"}
    assert moved.num_bytes == 12
