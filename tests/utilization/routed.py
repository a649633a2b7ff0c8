"""Mixtures of experts whose routing is set by hand, token by token and visit by visit."""

import torch

from tests.models import make_model

EXPERTS = 8


def hand_set(table, depth=1, experts=EXPERTS):
    """A model in which token v goes to the experts `table[visit][v]`, looped over `depth` layers.

    Every token is a direction of its own and no branch writes, so routers see the same state at every visit.
    """
    vocab, k = len(table[0]), len(table[0][0])
    ffn = {"kind": "moe", "num_experts": experts, "top_k": k, "hidden_dim": 4, "router": "per_loop"}
    dim, loops = vocab + vocab % 2, len(table) // depth
    blocks = {"dense": {"mixer": {"kind": "gqa", "num_heads": 1}, "ffn": ffn}}
    model = make_model(dim=dim, vocab=vocab, blocks=blocks, depth=depth, loops=loops)
    bank = model.schedules.branch_banks["dense/ffn"].weight
    with torch.no_grad():
        model.embed.weight.copy_(torch.eye(vocab, dim))
        for layer in model.layers:
            layer.mixer.branch.o.weight.zero_()
            layer.ffn.branch.down.zero_()
        bank.zero_()
        for visit, row in enumerate(table):
            for token, chosen in enumerate(row):
                for place, expert in enumerate(chosen):
                    bank[visit, expert, token] = float(k - place)
    return model.eval()
