"""Functions run in several processes that share a gloo group, with a hard limit on time."""

import multiprocessing
import os
import pickle
import time
import traceback

PRELOADED = ["torch._dynamo", "torch.distributed.fsdp", "depthkit.training.session", "depthkit.ladder.spec"]


def _work(rank, size, meeting, results, function, arguments):
    os.environ.update({"RANK": str(rank), "WORLD_SIZE": str(size), "LOCAL_RANK": str(rank)})
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=size)
    try:
        found = (function(*arguments), None)
    except BaseException:
        found = (None, traceback.format_exc())
    results.put((rank, pickle.dumps(found)))  # tensors by value: this process is about to end
    results.close()
    results.join_thread()
    os._exit(0)  # a partner that has failed must not be waited for


def spread(function, *arguments, folder, size=2, seconds=240):
    """What `function(*arguments)` returns in each process, by rank."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    results = context.Queue()
    meeting = folder / f"meeting{time.time_ns()}"
    processes = [
        context.Process(target=_work, args=(rank, size, meeting, results, function, arguments))
        for rank in range(size)
    ]
    for process in processes:
        process.start()
    found, deadline = {}, time.monotonic() + seconds
    try:
        while len(found) < size:
            rank, content = results.get(timeout=max(0.1, deadline - time.monotonic()))
            value, error = pickle.loads(content)
            assert error is None, f"rank {rank}: {error}"
            found[rank] = value
    finally:
        for process in processes:
            process.kill()
            process.join()
    return [found[rank] for rank in range(size)]
