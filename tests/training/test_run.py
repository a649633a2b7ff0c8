import pytest

from depthkit import config as configs
from depthkit.training.run import default_folder, resolve_model


@pytest.mark.parametrize(
    ("train", "words"),
    [
        ({"tokens": 100, "steps": 3}, "exactly one of steps and tokens, not both"),
        ({"tokens": None, "steps": None}, "exactly one of steps and tokens, not neither"),
        ({"schedule": {"kind": "cosine", "warmup": 12}}, "train.schedule.warmup: 12 does not fit into 12"),
        ({"schedule": "cosin"}, "did you mean 'cosine'"),
        ({"optimizer": "adam"}, "did you mean 'adamw'"),
        ({"optimizer": {"betas": [0.9, 1.0]}}, "each must be at least 0 and below 1"),
        ({"lr": 0}, "train.lr: Input should be greater than 0"),
        ({"device": "tpu"}, "train.device"),
        ({"clp": 1.0}, "did you mean 'clip'"),
        ({"keep": 0}, "train.keep"),
    ],
)
def test_contradictions_are_refused_with_the_reason(run, train, words):
    with pytest.raises(configs.ConfigError, match=words):
        run(**train)


def test_a_learning_rate_must_be_written_out(mapping):
    raw = mapping()
    del raw["train"]["lr"]
    with pytest.raises(configs.ConfigError, match=r"train\.lr: Field required"):
        configs.parse(raw)


def test_tokens_are_rounded_up_to_whole_steps(run):
    assert run(tokens=128 * 3).total_steps == 3
    assert run(tokens=128 * 3 + 1).total_steps == 4
    assert run().train.tokens_per_step(16) == 4 * 2 * 16


def test_settings_without_effect_are_named(run):
    advice = run(eval_every=13, telemetry_every=12).advice()
    assert [line.partition(":")[0] for line in advice] == ["train.eval_every"]
    assert run().advice() == []


def test_the_vocabulary_is_the_tokenizers_unless_the_model_has_a_larger_one(run):
    assert resolve_model(run()).vocab_size == 257
    assert run(model={"vocab": 300}).with_vocabulary(257).model.vocab_size == 300
    with pytest.raises(ValueError, match=r"model.vocab_size: 31 is less than the tokenizer's 257"):
        run(model={"vocab": 31}).with_vocabulary(257)


def test_a_run_is_named_after_its_file_and_its_values(run, tmp_path):
    first, second = run(), run(lr=1e-3)
    names = {default_folder(config, tmp_path / "tiny.yaml").name for config in (first, run(), second)}
    assert names == {f"tiny-{configs.fingerprint(first)}", f"tiny-{configs.fingerprint(second)}"}


def test_the_resolved_config_reads_back_equal(run, tmp_path):
    (tmp_path / "config.yaml").write_text(configs.to_yaml(run()))
    assert configs.load(tmp_path / "config.yaml") == run()
