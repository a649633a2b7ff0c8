"""Small models with everything that might depend on the number of processes."""

MIXER = {"kind": "gqa", "num_heads": 2, "num_kv_heads": 1}
MOE = {"kind": "moe", "num_experts": 4, "hidden_dim": 8, "bias_rate": 0.01, "balance": 0.1, "scope": "batch"}
SAMPLED = {"kind": "uniform", "min": 1, "max": 3, "mean": 2}
RANDOM = {"loops": SAMPLED, "inject": "convex", "state_init": "normal", "carry": "mean"}
DROPPED = ["layer_rope", {"kind": "layer_drop", "rate": 0.4}]


def looped(**core):
    first, last = ({"name": name, "pattern": ["dense"]} for name in ("first", "last"))
    return [first, {"name": "core", "pattern": ["dense"], **core}, last]


def experts(**options):
    return {"dense": {"mixer": MIXER, "ffn": {**MOE, **options}}}


MODELS = {
    "dense": {"depth": 3, "head": {"tied": True}, "norm": "bhyt", "regulators": DROPPED},
    "looped": {"segments": looped(**RANDOM), "blocks": experts(router="per_loop")},
    "moe": {"blocks": experts(scope="sequence")},
    "streams": {"segments": looped(**RANDOM), "stream": "hyper"},
    "unshared": {"segments": looped(loops=SAMPLED, shared=False)},
    "truncated": {"segments": looped(loops={"kind": "fixed", "mean": 3, "backprop": 1}, inject="add")},
}

DDP, FSDP = {"data": "ddp"}, {"data": "fsdp"}
"""Ways to share the work."""

BLOCK = {"activation_checkpointing": "block"}
QUICK = {
    "dense-ddp": ("dense", DDP, {}),
    "dense-fsdp": ("dense", FSDP, {}),
    "looped-ddp": ("looped", DDP, {}),
    "looped-fsdp": ("looped", FSDP, BLOCK),
    "looped-experts": ("looped", {**FSDP, "expert": 2}, BLOCK),
}
REST = {
    **{f"{name}-{way['data']}": (name, way, {}) for name in list(MODELS)[2:] for way in (DDP, FSDP)},
    "every_k": ("looped", FSDP, {"activation_checkpointing": {"kind": "every_k", "k": 2}}),
    "selective": ("looped", FSDP, {"activation_checkpointing": "selective"}),
    "experts": ("moe", {**DDP, "expert": 2}, {}),
}
FOUR = {
    "hybrid": ("looped", {**FSDP, "replicate": 2}, {}),
    "hybrid-experts": ("looped", {**FSDP, "replicate": 2, "expert": 2}, {}),
    "replicas": ("looped", {**DDP, "expert": 4}, {}),
}
