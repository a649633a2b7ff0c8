"""What `eval.py` accepts, and the named sets of probes. Reading this file loads no torch."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, PlainValidator, field_validator, model_validator

from depthkit.config import Component
from depthkit.registry import Spec, unknown
from depthkit.utilization.nulls import NULLS
from depthkit.utilization.papers import PAPERS, PREFIX
from depthkit.utilization.probes import PROBES

QUICK = ("stream", "contribution", "influence", "angular", "ablation", "causal", "lens")
STANDARD = (
    *QUICK,
    "experts",
    "expert_overlap",
    "loops",
    "weight_sparsity",
    "branch_contribution",
    "effective_rank",
    "cka",
    "usefulness",
    "branch_ablation",
    "mean_ablation",
    "loop_ablation",
    "output_effect",
    "routing_change",
)
FULL = (
    *STANDARD,
    "attention",
    "jacobian",
    "gradient_norm",
    "resample_ablation",
    "block_drop",
    "greedy_drop",
    "swap",
    "order",
    "future_effect",
    "local_effect",
)
PRESETS: dict[str, tuple[str, ...]] = {
    "baseline": ("stream",),
    "quick": QUICK,
    "states": ("stream", "contribution", "influence", "angular", "lens"),
    "standard": STANDARD,
    "full": FULL,
}
"""`quick` skips each visit once; `states` asks only what one forward pass answers; `standard` adds what costs
no more than skipping does, `full` everything that windows of text answer. `baseline` is what goes with tasks:
the loss on a few windows. `paper:NAME` is a paper's own choice; see `papers`."""
SAMPLES = {"quick": (16, 64), "baseline": (4, 64)} | dict.fromkeys(("states", "standard", "full"), (32, 128))
"""Windows, and tokens in each, that a preset reads where nothing else is said; a paper's are `standard`'s."""


def preset_names() -> list[str]:
    """Every preset, those of papers included."""
    return [*PRESETS, *(f"{PREFIX}{name}" for name in PAPERS.names())]


def preset_probes(preset: str) -> tuple[Any, ...]:
    """The probes of a preset, as names and `{kind: ...}` mappings.

    Raises:
        ValueError: unknown preset.
    """
    if preset not in PRESETS and preset not in preset_names():
        raise ValueError(unknown("preset", preset, preset_names()))
    paper = preset.removeprefix(PREFIX)
    return PRESETS[preset] if preset in PRESETS else PAPERS.get(paper).probes


PRETRAINED_ONLY = {"data", "bos", "dtype", "revision", "attn_implementation", "trust_remote_code", "subject"}
"""Settings that a run of depthkit has no use for: its own config says these things."""


class SubjectOptions(Spec):
    """Where the parts of a Hugging Face model are, when what is found by itself is not right."""

    layers: str | list[str] | None = None
    """Path of the layer list, or of several lists or layers in the order of their first call."""
    final_norm: str | None = None
    """Path of the norm after the last layer."""
    head: str | None = None
    """Path of the output projection; with it states are read out as head(final_norm(state))."""
    stream: Literal["memory", "disk"] = "memory"
    """Where the layers of a Hugging Face model are: disk reads each when it runs, one pass over the weights a
    sweep, and holds two, for models larger than memory."""


class ReplayOptions(Spec):
    """How altered models are run. Results are the same, those of stacked ones up to rounding."""

    stack: bool = False
    """Run several altered models in one batch of up to batch_tokens: faster where windows are few, and equal
    to 1e-5 instead of bit for bit. Checked first; where it cannot be done a warning says why."""
    offload_bytes: int | None = Field(default=None, ge=0)
    """Recorded states kept where the model computes, in bytes; the rest goes to host memory, or, of a model
    on the CPU, into a temporary file. null is half of the memory that is available."""


class EvalOptions(Spec):
    """Settings of an evaluation."""

    preset: str = "quick"
    """Named set of probes: quick, states (one pass, no skipping), standard, full, paper:csordas,
    paper:depthbench, paper:lns, paper:sparsity. baseline, the loss alone, is the default beside tasks."""
    probes: list[Annotated[Any, Component(PROBES)]] | None = None
    """The probes themselves, such as [ablation, stream]; replaces the preset."""
    null: Annotated[Any, PlainValidator(lambda value: _nulls(value))] = "auto"
    """What to hold the numbers against: random_init, shuffled_layers, a list of them, or none; each is a
    second evaluation. auto: random_init in eval.py, none with checkpoints=all or preset=baseline, in Python
    and in ladders."""
    tasks: list[str] = []
    """Tasks of lm-eval, such as [agreement,definition]; needs the extra tasks. Alone they come with the
    baseline only; with a preset or probes beside them layers are measured too."""
    tasks_limit: int | None = Field(None, ge=1)
    """Items of each task; null is all of lm-eval's, and 40 of agreement and definition."""
    tasks_fewshot: int | None = Field(None, ge=0)
    """Solved examples before each item; null is what a task itself says."""
    skip: list[int] | int | None = None
    """Visits to skip, such as [3,5], counted from 0: each task is asked once more without them, and the
    accuracy is given beside the intact one."""
    drop: list[int] | int | None = None
    """Layers to remove, such as [3,4], counted from 0: writes a pruned Hugging Face checkpoint to `out`."""
    sequences: int = Field(16, ge=1)
    """Held-out windows to read, drawn with the seed; a preset has its own number."""
    sequence_length: int | None = Field(None, ge=1)
    """Tokens in a window; null takes the preset's, or less where the model or its run has less."""
    seed: int = Field(0, ge=0)
    """Draws the windows and the bootstrap resamples."""
    batch_tokens: int = Field(1024, ge=1)
    """Tokens that go through a layer at once; results do not depend on it."""
    checkpoints: Literal["last", "all"] = "last"
    """Which checkpoints of a run: the last, or all, which also shows utilization over training."""
    replay: ReplayOptions = ReplayOptions()
    """How altered models are run: stack, offload_bytes."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where to compute; auto takes a GPU when there is one."""
    html: bool = True
    """Write the interactive report.html."""
    plots: bool = True
    """Write PNG plots."""
    out: str | None = None
    """Folder of the report; null writes into the run folder, or into reports/NAME for other models."""
    data: str | dict[str, Any] = "kjv"
    """Text of a Hugging Face model: kjv, a .npy or .bin of ids, .txt, .jsonl, .parquet; or data settings."""
    bos: Literal["auto", "none"] | int = "auto"
    """Id that opens each window of a Hugging Face model; auto takes its tokenizer's mark, if it has one. For
    tasks, auto is what the tokenizer itself puts in front of a text, as in lm-eval."""
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    """Number type of a Hugging Face model."""
    revision: str | None = None
    """Branch, tag or commit of a Hugging Face name; null means main."""
    attn_implementation: str = "sdpa"
    """Attention of a Hugging Face model: sdpa, eager, or another that transformers knows."""
    trust_remote_code: bool = False
    """Run the code that a Hugging Face repository brings along."""
    subject: SubjectOptions = SubjectOptions()
    """Parts of a Hugging Face model by path: layers, final_norm, head. stream=disk leaves layers there."""

    @model_validator(mode="before")
    @classmethod
    def _sample(cls, data: Any) -> Any:
        if isinstance(data, dict) and isinstance(data.get("tasks"), str):
            data = data | {"tasks": [data["tasks"]]}
        if isinstance(data, dict) and data.get("tasks") and not {"preset", "probes"} & set(data):
            data = {"preset": "baseline"} | data
        preset = data.get("preset") if isinstance(data, dict) else None
        return {"sequences": _sample(preset)[0]} | data if isinstance(preset, str) else data

    @field_validator("preset")
    @classmethod
    def _known(cls, value: str) -> str:
        preset_probes(value)
        return value

    @model_validator(mode="after")
    def _streamable(self) -> EvalOptions:
        whole = {"null": self.nulls, "drop": self.dropped, "tasks": self.tasks}
        name = next((name for name, asked in whole.items() if asked), None)
        if self.subject.stream == "disk" and name:
            raise ValueError(f"{name}: needs a whole model in memory, which subject.stream=disk does without")
        return self

    @model_validator(mode="after")
    def _asked_of_tasks(self) -> EvalOptions:
        if len(set(self.tasks)) < len(self.tasks):
            raise ValueError(f"tasks: name each once, not {self.tasks}")
        if self.skipped and not self.tasks:
            raise ValueError("skip: is for tasks, so give them too, such as tasks=[agreement]")
        if len(set(self.skipped)) < len(self.skipped) or min(self.skipped, default=0) < 0:
            raise ValueError(f"skip: name visits from 0 on, each once, not {self.skipped}")
        return self

    @property
    def asked(self) -> Any:
        """What `evaluate` takes as `probes`: the probes, or else the preset's name."""
        return self.preset if self.probes is None else self.probes

    @property
    def nulls(self) -> list[Any]:
        """The null models that were asked for by name."""
        return [] if self.null == "auto" else self.null

    @property
    def dropped(self) -> list[int]:
        """The layers to remove."""
        return _several(self.drop)

    @property
    def skipped(self) -> list[int]:
        """The visits that tasks are asked without."""
        return _several(self.skip)

    @property
    def only_tasks(self) -> bool:
        """Whether tasks are asked, and nothing of the layers."""
        return bool(self.tasks) and self.probes is None and self.preset == "baseline"

    @property
    def asked_tasks(self) -> list[str]:
        """The tasks, those that only a probe asks for included."""
        probes = [] if self.probes is None else self.probes
        return list(dict.fromkeys([*self.tasks, *(p.task for p in probes if hasattr(p, "task"))]))

    def length(self, most: int | None) -> int:
        """Tokens in a window: what was said, or the preset's, but then no more than `most`."""
        if self.sequence_length is not None:
            return self.sequence_length
        own = _sample(self.preset)[1]
        return own if most is None else min(own, most)

    def within(self, length: int, corpus: Any) -> EvalOptions:
        """With the window decided for a run that was trained on windows of `length`.

        A corpus that prescribes its windows, such as a task with whole problems in them, keeps them.
        """
        needs: dict[str, Any] = getattr(corpus, "needs", dict)()
        chosen = None if "sequence_length" in needs else self.length(length)
        return self.model_copy(update={"sequence_length": self.sequence_length or chosen})


def _several(numbers: list[int] | int | None) -> list[int]:
    return [numbers] if isinstance(numbers, int) else list(numbers or [])


def _sample(preset: str) -> tuple[int, int]:
    return SAMPLES.get(preset, SAMPLES["standard"])


def _nulls(value: Any) -> Any:
    """`auto`, or validated configs of null models from `none`, a name, a mapping, or a list."""
    if value == "auto" or (isinstance(value, list) and all(isinstance(item, Spec) for item in value)):
        return value
    listed = [] if value == "none" else value if isinstance(value, list) else [value]
    for name in listed:
        if isinstance(name, str) and name not in NULLS.names():
            raise ValueError(unknown("null", name, ["auto", "none", *NULLS.names()]))
    configs = [Component(NULLS).validate(item) for item in listed]
    kinds = [config.kind for config in configs]  # type: ignore[union-attr]
    if len(set(kinds)) < len(kinds):
        raise ValueError(f"null: name each once, not {kinds}")
    return configs


def probe_configs(probes: Any = None) -> list[Any]:
    """Validated probe configs from a preset's name, or from a list of names and `{kind: ...}` mappings.

    Raises:
        ValueError: unknown preset, unknown probe, unknown setting, or a probe named twice.
    """
    listed = preset_probes(probes or "quick") if probes is None or isinstance(probes, str) else probes
    configs: list[Any] = [Component(PROBES).validate(probe) for probe in listed]
    kinds = [config.kind for config in configs]
    if len(set(kinds)) < len(kinds) or not kinds:
        raise ValueError(f"probes: name at least one, each once, not {kinds}")
    return configs
