"""Rungs as jobs of a Slurm cluster, through submitit."""

from __future__ import annotations

import importlib.util
import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from depthkit.files import write_json
from depthkit.ladder.launchers.base import Handle, Launcher
from depthkit.ladder.registries import LAUNCHERS
from depthkit.ladder.rung import Task, run_rung
from depthkit.ladder.state import State

ALIVE = ("PENDING", "RUNNING", "CONFIGURING", "COMPLETING", "REQUEUED", "RESIZING", "SUSPENDED")
"""Slurm's words for a job that is still to give its answer."""


class Resumable:
    """A job that goes back into the queue when its time is up, and on from the last checkpoint."""

    def __init__(self, job: Callable[[Task], State]):
        self.job = job

    def __call__(self, task: Task) -> State:
        """Run the rung."""
        return self.job(task)

    def checkpoint(self, task: Task) -> Any:
        """What to run when the job starts again: the same, which finds the checkpoint."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self, task)


class _Submitted(Handle):
    def __init__(self, job: Any):
        self._job = job

    def poll(self) -> State | str | None:
        """None while it waits or runs."""
        from submitit.core.utils import UncompletedJobError

        if not self._job.done():
            return None
        try:
            return self._job.result()
        except UncompletedJobError as error:
            last = str(error).strip().splitlines()[-1:] or ["no reason given"]
            return (
                f"job {self._job.job_id} ended without an answer: {last[0]} (log: {self._job.paths.stderr})"
            )


@LAUNCHERS.register("slurm")
class Slurm(Launcher):
    """As jobs of a Slurm cluster, through submitit.

    A launcher that is stopped leaves them running; the same command follows them again. Jobs that run out of
    time go back into the queue and continue.
    """

    class Config(Launcher.Config):
        """What each job asks for."""

        cluster: Literal["slurm", "local"] = "slurm"
        """`local` runs the same jobs through submitit in processes of this machine, to try them out."""
        partition: str | None = None
        """Partition; null is the cluster's default."""
        minutes: int = Field(240, ge=1)
        """Longest time of one job."""
        cpus: int = Field(1, ge=1)
        """Cores of each job, and CPU threads of a rung that leaves them open."""
        gpus: int = Field(0, ge=0)
        """GPUs of each job."""
        memory_gb: float = Field(8.0, gt=0)
        """Memory of each job."""
        jobs: int = Field(64, ge=1)
        """Jobs in the queue at a time."""
        requeues: int = Field(10, ge=0)
        """How often a job that ran out of time is put back."""
        options: dict[str, Any] = {}
        """More of submitit's Slurm settings, such as {account: lab, qos: low, setup: [module load cuda]}."""

        def check(self) -> None:
            """Refuse a machine without submitit, or from which no job can be sent."""
            if importlib.util.find_spec("submitit") is None:
                raise ValueError("launch.kind: slurm needs submitit: pip install 'depthkit[slurm]'")
            if self.cluster == "slurm" and shutil.which("sbatch") is None:
                raise ValueError(
                    "launch.kind: slurm, but there is no sbatch here: start this on a machine of the cluster "
                    "that can submit jobs, or use launch=local"
                )

    def __init__(self, config: Any, folder: Path, job: Callable[[Task], State] = run_rung):
        import submitit

        super().__init__(config, folder, job)
        executor = submitit.AutoExecutor(
            folder / "jobs", cluster=config.cluster, **{f"{config.cluster}_max_num_timeout": config.requeues}
        )
        own = {"slurm_partition": config.partition, "slurm_array_parallelism": config.jobs}
        more = {f"slurm_{name}": value for name, value in config.options.items()}
        try:
            executor.update_parameters(
                name=folder.name,
                timeout_min=config.minutes,
                cpus_per_task=config.cpus,
                gpus_per_node=config.gpus,
                mem_gb=config.memory_gb,
                **{name: value for name, value in {**own, **more}.items() if value is not None},
            )
        except NameError as error:  # what submitit says to a setting it does not know
            raise ValueError(f"launch.options: {str(error).splitlines()[0]}") from None
        self._executor = executor
        self._sent = folder / "jobs" / "sent.json"
        self._jobs: list[Any] = []

    @staticmethod
    def workers(config: Any) -> int:
        """Jobs in the queue."""
        return config.jobs

    @property
    def threads(self) -> int:
        """The cores of a job."""
        return self.config.cpus

    def submit(self, tasks: Sequence[Task]) -> list[Handle]:
        """Send them as one job array; take over jobs of an earlier launcher that still live."""
        known = self._known()
        found = {task.rung.name: self._alive(known.get(task.rung.name)) for task in tasks}
        fresh = [task for task in tasks if found[task.rung.name] is None]
        jobs = self._send(fresh) if fresh else []
        found |= {task.rung.name: job for task, job in zip(fresh, jobs, strict=True)}
        self._jobs += found.values()
        write_json(self._sent, known | {name: job.job_id for name, job in found.items()})
        return [_Submitted(found[task.rung.name]) for task in tasks]

    def _send(self, tasks: Sequence[Task]) -> list[Any]:
        """One job array."""
        with self._executor.batch():
            return [self._executor.submit(Resumable(self.job), task) for task in tasks]

    def _known(self) -> dict[str, str]:
        return json.loads(self._sent.read_text(encoding="utf-8")) if self._sent.exists() else {}

    def _alive(self, job_id: str | None) -> Any:
        """The job of this id if it is still in Slurm's hands."""
        if job_id is None or self.config.cluster != "slurm":
            return None
        import submitit

        job: Any = submitit.SlurmJob(folder=self._executor.folder, job_id=job_id)
        return job if job.state.split()[0] in ALIVE else None

    def stop(self) -> None:
        """Jobs of a cluster go on by themselves; processes of this machine are ended."""
        if self.config.cluster == "local":
            for job in self._jobs:
                job.cancel()

    def close(self) -> None:
        """Nothing is held."""
