"""MegaBlocks' experts spread over ranks, in Triton's interpreter, against all of them in one process."""

import os

import pytest

from tests.kernels.expert_cases import make_case
from tests.kernels.parallel_cases import check, uneven
from tests.ranks import run_in_ranks

pytestmark = pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") != "1", reason="runs by `make test-megablocks`"
)


def check_megablocks():
    for gated, top_k in ((True, 2), (False, 1)):
        check("megablocks", make_case(tokens=9, top_k=top_k, gated=gated, experts=6), uneven(9))
    check("megablocks", make_case(tokens=5, experts=6), [0, 5])


def test_two_ranks_compute_what_one_process_does(tmp_path):
    run_in_ranks(check_megablocks, 2, tmp_path)
