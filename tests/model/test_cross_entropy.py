import pytest
import torch
from torch.nn import functional as F

from depthkit.model.cross_entropy import chunked_cross_entropy, token_cross_entropy


def inputs(tokens=13, dtype=torch.float64):
    torch.manual_seed(0)
    hidden = torch.randn(tokens, 5, dtype=dtype, requires_grad=True)
    weight = torch.randn(7, 5, dtype=dtype, requires_grad=True)
    targets = torch.randint(0, 7, (tokens,))
    targets[::4] = -100
    return hidden, weight, targets


@pytest.mark.parametrize("chunk", [1, 4, 13, 100])
@pytest.mark.parametrize("z_loss", [0.0, 0.3])
def test_equals_plain_cross_entropy_with_gradients(chunk, z_loss):
    hidden, weight, targets = inputs(dtype=torch.float32)
    logits = (hidden @ weight.T).double()
    nats = F.cross_entropy(logits, targets, ignore_index=-100, reduction="sum")
    z = (logits.logsumexp(-1).square() * (targets != -100)).sum()
    expected = torch.autograd.grad(3 * (nats + z_loss * z), [hidden, weight])
    got = chunked_cross_entropy(hidden, weight, targets, chunk, z_loss)
    torch.testing.assert_close(got.nats.double(), nats)
    torch.testing.assert_close(got.objective.double(), nats + z_loss * z)
    for a, b in zip(torch.autograd.grad(3 * got.objective, [hidden, weight]), expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def test_token_losses_sum_to_the_loss_and_skip_unscored():
    hidden, weight, targets = inputs(dtype=torch.float32)
    losses = token_cross_entropy(hidden, weight, targets, 4)
    torch.testing.assert_close(losses.sum(), chunked_cross_entropy(hidden, weight, targets, 4).nats)
    assert (losses[targets == -100] == 0).all()


def test_no_gradients_are_formed_without_grad_mode():
    hidden, weight, targets = inputs(dtype=torch.float32)
    with torch.no_grad():
        assert not chunked_cross_entropy(hidden, weight, targets, 4).objective.requires_grad


def test_only_the_weight_needs_gradients():
    hidden, weight, targets = inputs(dtype=torch.float32)
    chunked_cross_entropy(hidden.detach(), weight, targets, 4).objective.backward()
    assert weight.grad is not None


def test_bf16_autocast_stays_close_to_fp32():
    hidden, weight, targets = inputs(256, torch.float32)
    exact = chunked_cross_entropy(hidden, weight, targets, 64)
    with torch.autocast("cpu", torch.bfloat16):
        rounded = chunked_cross_entropy(hidden, weight, targets, 64)
        rounded.objective.backward()
    assert rounded.nats.dtype == torch.float32
    torch.testing.assert_close(rounded.nats, exact.nats, rtol=1e-2, atol=0)
    assert hidden.grad.dtype == torch.float32


def test_the_logits_of_all_tokens_never_exist():
    """The largest tensor any operation returns is a chunk of logits, not all of them."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class Largest(TorchDispatchMode):
        size = 0

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            out = func(*args, **(kwargs or {}))
            for tensor in out if isinstance(out, tuple) else (out,):
                if isinstance(tensor, torch.Tensor):
                    self.size = max(self.size, tensor.numel())
            return out

    hidden = torch.randn(512, 4, requires_grad=True)
    weight = torch.randn(100, 4, requires_grad=True)
    with Largest() as largest:
        chunked_cross_entropy(hidden, weight, torch.zeros(512, dtype=torch.long), 32).objective.backward()
    assert largest.size == 32 * 100
