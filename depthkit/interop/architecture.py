"""Depthkit's own architecture for `transformers`; importing this module makes it known there.

Whatever a config of ours describes, loops, experts, streams and gains as they are, loads and saves with
`AutoModelForCausalLM` and generates with a cache that is kept by visit. It is for evaluation and inference:
for training with sampled loop counts and random states use train.py.

Shapes: B batch, T time, S positions so far, D width, V vocabulary.
"""

from __future__ import annotations

import contextlib
from dataclasses import fields
from typing import Any

import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, GenerationMixin, PreTrainedConfig, PreTrainedModel
from transformers.modeling_outputs import CausalLMOutputWithPast

from depthkit import config as configs
from depthkit.model import ModelConfig, Transformer
from depthkit.model.cache import Cache
from depthkit.model.cross_entropy import IGNORE

MODEL_TYPE = "depthkit"
CACHE = next(f.name for f in fields(CausalLMOutputWithPast) if f.name in ("cache", "past_key_values"))
"""How this version of transformers calls the cache."""


class DepthkitConfig(PreTrainedConfig):
    """What stands under `model:` in a run's config, and the names other libraries look for."""

    model_type = MODEL_TYPE

    model: dict[str, Any] | None = None
    vocab_size: int | None = None
    hidden_size: int | None = None
    num_hidden_layers: int | None = None
    max_position_embeddings: int | None = None
    bos_token_id: int | None = None
    eos_token_id: int | None = None
    pad_token_id: int | None = None
    tie_word_embeddings: bool = False
    use_cache: bool = True


class VisitCache:
    """The keys and values of all visits, with the names that `generate` asks for."""

    is_compileable = False
    is_croppable = False
    is_linear = (False,)

    def __init__(self) -> None:
        self.slots = Cache()

    def get_seq_length(self) -> int:
        """Positions held."""
        return self.slots.length

    def reorder_cache(self, order: Tensor) -> None:
        """Refused with a ValueError."""
        raise ValueError("num_beams: beam search is not supported by depthkit's cache; use num_beams=1")


class DepthkitForCausalLM(PreTrainedModel, GenerationMixin):
    """A depthkit model behind the interface of `transformers`.

    Raises:
        ValueError: a config without a valid `model`.
    """

    config_class = DepthkitConfig
    base_model_prefix = "model"
    _no_split_modules = ["Block"]
    _supports_sdpa = True  # which kernel runs is the mixer's own `backend`

    def __init__(self, config: Any):
        super().__init__(config)
        self.model = Transformer(configs.validate(ModelConfig, config.model, "config.json: model"))
        self.post_init()

    def _init_weights(self, module: Any) -> None:
        """The model has initialised itself."""

    def get_input_embeddings(self) -> Any:
        """The token embedding."""
        return self.model.embed

    def get_output_embeddings(self) -> Any:
        """The head, or None where it reads the embedding."""
        return None if self.model.head.weight is None else self.model.head

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        loops: int | None = None,
        cache: VisitCache | None = None,
        past_key_values: VisitCache | None = None,
        return_dict: bool | None = None,
        **unused: Any,
    ) -> CausalLMOutputWithPast:
        """Logits, and with labels the loss.

        Args:
            input_ids: `[B, T]`, the positions after those in the cache.
            attention_mask: `[B, S]`, 0 where a position is padding.
            labels: `[B, T]`, -100 where not scored; shifted here, as `transformers` does.
            use_cache: start a cache where none is given.
            loops: loop count of looped segments; None is the configured one.
            cache, past_key_values: what an earlier call returned.
            return_dict: only true is supported, which None means too.
            unused: what callers send along for other models; position ids follow from the cache.
        """
        held = cache or past_key_values or (VisitCache() if use_cache and not self.training else None)
        with self._precision():
            output = self.model(
                input_ids,
                targets=None if labels is None else shifted(labels),
                documents=documents_of(attention_mask),
                loops=loops,
                cache=None if held is None else held.slots,
            )
            logits = self.model.logits(output.hidden)
        loss = None
        if labels is not None:  # what is added to the objective in training is no part of an evaluated loss
            loss = output.loss if self.training else self.loss_function(logits, labels, logits.shape[-1])
        kept: dict[str, Any] = {CACHE: held}
        return CausalLMOutputWithPast(loss=loss, logits=logits, **kept)

    def _precision(self) -> Any:
        """Norms and the stream stay in fp32 where weights are shorter."""
        dtype = self.model.embed.weight.dtype
        if dtype in (torch.float32, torch.float64):
            return contextlib.nullcontext()
        return torch.autocast(self.device.type, dtype)

    def prepare_inputs_for_generation(self, input_ids: Tensor, **kwargs: Any) -> dict[str, Any]:
        """The positions that are not in the cache yet; ids are those of the whole sequence."""
        held = kwargs.get(CACHE)
        start = 0 if held is None else held.get_seq_length()
        kept = ("attention_mask", "use_cache", "loops")
        return {"input_ids": input_ids[:, start:], CACHE: held} | {k: kwargs[k] for k in kept if k in kwargs}

    def _prepare_cache_for_generation(  # type: ignore[override]  # what comes after is not looked at
        self, generation_config: Any, model_kwargs: dict[str, Any], *rest: Any
    ) -> None:
        if generation_config.use_cache is not False and model_kwargs.get(CACHE) is None:
            model_kwargs[CACHE] = VisitCache()


def shifted(labels: Tensor) -> Tensor:
    """Labels `[B, T]` that stand under their own token -> targets that stand under the one before."""
    return torch.cat([labels[:, 1:], labels.new_full((len(labels), 1), IGNORE)], dim=1)


def documents_of(attention_mask: Tensor | None) -> Tensor | None:
    """Padding is a document of its own, which no other token sees; rotary positions are relative."""
    if attention_mask is None or bool(attention_mask.all()):
        return None
    return attention_mask.long()


def wrapped(
    model: Transformer, context: int, bos: int | None = None, eos: int | None = None
) -> DepthkitForCausalLM:
    """A model of ours behind the interface of `transformers`, with its own weights."""
    config = DepthkitConfig(
        model=configs.to_dict(model.config),
        vocab_size=model.vocab_size,
        hidden_size=model.config.dim,
        num_hidden_layers=model.plan.depth,
        max_position_embeddings=context,
        bos_token_id=bos,
        eos_token_id=eos,
        architectures=["DepthkitForCausalLM"],
    )
    made = DepthkitForCausalLM(config)
    made.model.load_state_dict(model.state_dict())
    return made.eval()


AutoConfig.register(MODEL_TYPE, DepthkitConfig, exist_ok=True)
AutoModelForCausalLM.register(DepthkitConfig, DepthkitForCausalLM, exist_ok=True)
