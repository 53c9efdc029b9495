"""PriorMean against a dense Jacobian."""

import pytest
import torch
from inducing_cases import dense_jacobian, make_data, make_net
from torch.testing import assert_close

from lingp.gpytorch_models import LinearizedSVGP, NTKernel, PriorMean
from lingp.priors import Isotropic


@pytest.mark.parametrize("num_outputs", [1, 2])
@pytest.mark.parametrize("centre", [0.0, 0.3])
def test_mean_is_the_linear_model_at_the_priors(num_outputs, centre):
    net, (x, _) = make_net(num_outputs), make_data(5)
    mean = PriorMean(NTKernel.from_model(net, prior=Isotropic(1.0, mean=centre)))
    weights = torch.cat([p.detach().flatten() for p in net.parameters()])
    shift = dense_jacobian(net, x) @ (centre - weights)
    expected = net(x).detach() + shift.view(5, num_outputs)
    assert_close(mean(x), expected.squeeze(1))
    batch = torch.stack([x, x + 1])
    assert_close(mean(batch)[1], mean(x + 1))


def test_at_the_trained_weights_it_is_the_network():
    net, (x, _) = make_net(), make_data(5)
    weights = torch.cat([p.detach().flatten() for p in net.parameters()])
    mean = PriorMean(NTKernel.from_model(net, prior=Isotropic(1.0, mean=weights)))
    assert_close(mean(x), net(x).squeeze(1))


def test_active_dimensions():
    net, (x, _) = make_net(), make_data(5)
    wide = torch.cat([torch.ones(5, 1).double(), x], 1)
    kernel = NTKernel.from_model(net, active_dims=(1, 2, 3))
    expected = PriorMean(NTKernel.from_model(net))(x)
    assert_close(PriorMean(kernel)(wide), expected)


def test_gradient_for_inputs():
    net, (x, _) = make_net(), make_data(5)
    mean = PriorMean(NTKernel.from_model(net))
    assert torch.autograd.gradcheck(mean, x.requires_grad_(True))


def test_it_is_an_option_of_the_variational_model():
    net, (x, _) = make_net(2), make_data(5)
    kernel = NTKernel.from_model(net)
    model = LinearizedSVGP(kernel, x[:2], mean=PriorMean)
    assert_close(model(x).mean, PriorMean(kernel)(x))
