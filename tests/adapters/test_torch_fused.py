import pytest
import torch
import torch.nn.functional as F

from asyncrl_runtime.adapters.torch.fused import rotated, swiglu


def random(*shape):
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def angles():
    half = random(5, 1, 3)
    return torch.cat((half.cos(), half.cos()), -1), torch.cat((-half.sin(), half.sin()), -1)


@pytest.mark.parametrize("grad", [True, False])
def test_swiglu_is_what_it_says(grad):
    x = random(3, 5, 8).requires_grad_(grad)
    gate, up = x.chunk(2, -1)

    torch.testing.assert_close(swiglu(x), F.silu(gate) * up)


def test_a_rotation_turns_each_pair_of_halves():
    x, (cos, sin) = random(2, 5, 4, 6), angles()
    first, second = x.chunk(2, -1)
    real, imaginary = cos[..., :3], sin[..., 3:]
    expected = torch.cat((first * real - second * imaginary, second * real + first * imaginary), -1)

    torch.testing.assert_close(rotated(x, cos, sin), expected)
    torch.testing.assert_close(rotated(x.requires_grad_(), cos, sin), expected)


def test_the_backward_passes_are_those_of_the_forward_passes():
    cos, sin = angles()

    assert torch.autograd.gradcheck(swiglu, random(2, 3, 8).requires_grad_())
    assert torch.autograd.gradcheck(lambda x: rotated(x, cos, sin), random(2, 5, 2, 6).requires_grad_())
