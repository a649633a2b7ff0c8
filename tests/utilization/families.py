"""Tiny random models of 29 Hugging Face families, with weights large enough that every layer matters."""

from __future__ import annotations

from typing import Any

import torch

BASE = {
    "vocab_size": 97,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 6,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
MOE = {
    "num_experts": 8,
    "num_local_experts": 8,
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
    "shared_expert_intermediate_size": 16,
}
GPT = {"n_embd": 32, "n_layer": 6, "n_head": 4, "n_positions": 256}
SLIDING = {"sliding_window": 4}
HEADS = {"head_dim": 8, "query_pre_attn_scalar": 8}
LATENT = {
    "q_lora_rank": 8,
    "kv_lora_rank": 8,
    "qk_rope_head_dim": 4,
    "qk_nope_head_dim": 4,
    "v_head_dim": 8,
    "n_group": 2,
    "topk_group": 1,
    "first_k_dense_replace": 1,
    "num_key_value_heads": 4,
}
SCALED = {"embedding_multiplier": 12.0, "logits_scaling": 8.0, "residual_multiplier": 0.22}
FAMILIES: dict[str, dict[str, Any]] = {
    "bloom": {},
    "cohere": {},
    "deepseek_v3": MOE | LATENT,
    "falcon": {},
    "gemma": HEADS,
    "gemma2": SLIDING | HEADS,
    "gemma3_text": SLIDING | HEADS,
    "glm4": {},
    "gpt2": GPT,
    "gpt_neox": {},
    "gpt_oss": MOE | SLIDING,
    "gptj": GPT | {"rotary_dim": 8},
    "granite": SCALED,
    "llama": {},
    "mistral": SLIDING,
    "mixtral": MOE,
    "nemotron": {},
    "olmo": {},
    "olmo2": {},
    "olmo3": SLIDING,
    "olmoe": MOE,
    "opt": {"ffn_dim": 48, "word_embed_proj_dim": 32},
    "phi": {},
    "phi3": {},
    "qwen2": {},
    "qwen2_moe": MOE,
    "qwen3": HEADS,
    "qwen3_moe": MOE,
    "stablelm": {},
}
WITHOUT_SDPA = {"bloom", "gemma2", "gpt_oss"}


def family(name: str, seed: int = 0, **settings: Any) -> Any:
    """A model of a family in evaluation mode, its weights drawn from N(0, 0.15)."""
    from transformers import AutoConfig, AutoModelForCausalLM

    from depthkit.interop.hf import import_transformers, quiet

    attention = "eager" if name in WITHOUT_SDPA else "sdpa"
    with quiet(import_transformers()):
        config = AutoConfig.for_model(name, **BASE | FAMILIES[name] | settings)
        model = AutoModelForCausalLM.from_config(config, attn_implementation=attention).float().eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0, 0.15, generator=generator)
    return model
