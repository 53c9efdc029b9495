"""NTKernel and NetworkMean as modules: hyperparameters, moving, saving, modes, copies, caching."""

import copy
import gc
import pickle
import weakref

import gpytorch
import pytest
import torch
from kernel_cases import ExactModel, make_data, make_network
from torch import nn

from lingp.gpytorch_models import NetworkMean, NTKernel
from lingp.linearization import LinearizedNetwork
from lingp.priors import Isotropic, Layerwise


class Model(nn.Module):
    """A kernel and a mean over it."""

    def __init__(self, net, prior=None):
        super().__init__()
        self.covar_module = NTKernel.from_model(net, prior=prior)
        self.mean_module = NetworkMean(self.covar_module)


def with_batchnorm():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 1)).double()
    net(torch.randn(50, 3).double())
    return net.eval()


def test_hyperparameters_are_the_priors():
    kernel = NTKernel.from_model(make_network(), prior=Layerwise())
    assert [name for name, _ in kernel.named_parameters()] == ["prior.raw_precision"]
    names = {name for name, _, _ in kernel.named_parameters_and_constraints()}
    assert names == {"prior.raw_precision"}
    assert kernel.constraint_for_parameter_name("prior.raw_precision") is not None
    assert [name for name, _ in Model(make_network()).mean_module.named_parameters()] == []


def test_a_gpytorch_prior_on_the_precision_enters_the_objective():
    x, y = make_data(10)
    kernel = NTKernel.from_model(make_network(), prior=Isotropic(2.0))
    likelihood = gpytorch.likelihoods.GaussianLikelihood().double()
    model = ExactModel(x, y, likelihood, kernel)
    objective = gpytorch.mlls.ExactMarginalLogLikelihood(likelihood, model)
    before = objective(model(x), y)
    log_prob = gpytorch.priors.GammaPrior(2.0, 0.5)
    kernel.prior.register_prior("precision_prior", log_prob, "precision")
    after = objective(model(x), y)
    expected = log_prob.log_prob(torch.tensor(2.0)).double() / len(y)
    torch.testing.assert_close(after - before, expected, rtol=1e-6, atol=1e-8)


def test_training_changes_hyperparameters_and_nothing_else():
    net = with_batchnorm()
    x, y = make_data(30)
    before = copy.deepcopy(net.state_dict())
    kernel = NTKernel.from_model(net, prior=0.3)
    likelihood = gpytorch.likelihoods.GaussianLikelihood().double()
    model = ExactModel(x, y, likelihood, kernel, NetworkMean(kernel))
    frozen = copy.deepcopy(kernel.network.state_dict())
    objective = gpytorch.mlls.ExactMarginalLogLikelihood(likelihood, model)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    model.train()
    losses = []
    for _ in range(15):
        optimizer.zero_grad()
        loss = -objective(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]
    assert kernel.prior.precision.item() != pytest.approx(0.3)
    for name, value in kernel.network.state_dict().items():
        assert torch.equal(value, frozen[name])
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())
    assert all(p.grad is None and p.requires_grad for p in net.parameters())
    assert not net.training


def test_train_mode_does_not_reach_the_network():
    kernel = NTKernel.from_model(with_batchnorm())
    x, _ = make_data(6)
    before = kernel(x).to_dense()
    kernel.train()
    assert not any(module.training for module in kernel.network.linearized.network.modules())
    assert torch.equal(kernel(x).to_dense(), before)


def test_dtype_and_device_follow_the_network():
    model = Model(make_network().float())
    kernel, mean = model.covar_module, model.mean_module
    x, _ = make_data(5)
    assert kernel.dtype == torch.float32
    assert kernel.device == torch.device("cpu")
    assert kernel(x.float()).dtype == kernel(x.float()).to_dense().dtype == torch.float32
    assert kernel.prior.raw_precision.dtype == torch.float32
    single = kernel(x.float()).to_dense()
    model.double()
    assert kernel.dtype == kernel(x).dtype == kernel(x).to_dense().dtype == torch.float64
    assert mean(x).dtype == torch.float64
    torch.testing.assert_close(kernel(x).to_dense(), single.double(), rtol=1e-5, atol=1e-5)
    scaled = gpytorch.kernels.ScaleKernel(NTKernel.from_model(make_network())).double()
    assert scaled.dtype == torch.float64
    assert scaled.to(torch.float32).base_kernel.network.linearized.dtype == torch.float32


def test_state_dict_holds_network_and_hyperparameters():
    x, _ = make_data(6)
    source, target = Model(make_network(), 0.2), Model(make_network(seed=1), 5.0)
    state = source.state_dict()
    assert "covar_module.network.0.weight" in state
    expected = source.covar_module(x).to_dense()
    assert not torch.allclose(target.covar_module(x).to_dense(), expected)
    result = target.load_state_dict(state)
    assert not result.missing_keys
    assert not result.unexpected_keys
    torch.testing.assert_close(target.covar_module(x).to_dense(), expected)
    torch.testing.assert_close(target.mean_module(x), source.mean_module(x))


def test_state_dict_of_another_network_is_refused():
    kernel = NTKernel.from_model(make_network())
    state = kernel.state_dict()
    with pytest.raises(RuntimeError, match="size mismatch"):
        NTKernel.from_model(make_network(hidden=(5, 5))).load_state_dict(state)
    with pytest.raises(RuntimeError, match=r"Missing key.*network\.6\.weight"):
        NTKernel.from_model(make_network(hidden=(12, 10, 1))).load_state_dict(state)
    with pytest.raises(RuntimeError, match=r"Unexpected key.*network\.extra"):
        kernel.load_state_dict({**state, "network.extra": torch.ones(1)})
    assert kernel.load_state_dict({**state, "network.extra": torch.ones(1)}, strict=False)


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))])
def test_copies_are_independent(duplicate):
    model = Model(make_network(), 0.2)
    x, _ = make_data(6)
    before = model.covar_module(x).to_dense()
    twin = duplicate(model)
    assert twin.mean_module.network is twin.covar_module.network
    torch.testing.assert_close(twin.covar_module(x).to_dense(), before)
    twin.float()
    twin.covar_module.prior.precision = 10.0
    assert model.covar_module.dtype == torch.float64
    assert torch.equal(model.covar_module(x).to_dense(), before)


def test_the_networks_weights_may_change_afterwards():
    net = make_network()
    kernel = NTKernel.from_model(net)
    x, _ = make_data(4)
    before = kernel(x).to_dense()
    with torch.no_grad():
        net[0].weight.zero_()
    kernel.network.clear_cache()
    assert torch.equal(kernel(x).to_dense(), before)


@pytest.fixture
def runs(monkeypatch):
    """Counts how often factors are computed."""
    calls = []
    factors = LinearizedNetwork.factors

    def counted(self, x):
        calls.append(len(x))
        return factors(self, x)

    monkeypatch.setattr(LinearizedNetwork, "factors", counted)
    return calls


def test_factors_are_computed_once_for_the_same_inputs(runs):
    x, y = make_data(20)
    x_test, _ = make_data(7, seed=1)
    kernel = NTKernel.from_model(make_network())
    likelihood = gpytorch.likelihoods.GaussianLikelihood().double()
    model = ExactModel(x, y, likelihood, kernel)
    objective = gpytorch.mlls.ExactMarginalLogLikelihood(likelihood, model)
    for _ in range(3):
        model.zero_grad()
        objective(model(x), y).backward()
    assert runs == [20]
    assert kernel.prior.raw_precision.grad != 0
    model.eval()
    with torch.no_grad():
        model(x_test)
        predicted = len(runs)
        model(x_test)
    assert len(runs) == predicted


def test_changed_inputs_are_seen(runs):
    kernel = NTKernel.from_model(make_network())
    x, _ = make_data(5)
    numpy_owned = torch.from_numpy(x.numpy().copy())
    before = kernel(numpy_owned).to_dense()
    numpy_owned.numpy()[0] += 1.0  # no version counter sees this
    after = kernel(numpy_owned).to_dense()
    assert runs == [5, 5]
    assert not torch.allclose(before, after)
    torch.testing.assert_close(after, NTKernel.from_model(make_network())(numpy_owned).to_dense())


def test_moving_and_loading_forget_factors(runs):
    kernel = NTKernel.from_model(make_network())
    other = NTKernel.from_model(make_network(seed=1))
    x, _ = make_data(5)
    kernel(x).to_dense()
    kernel.load_state_dict(other.state_dict())
    torch.testing.assert_close(kernel(x).to_dense(), other(x).to_dense())
    kernel.double()
    kernel(x).to_dense()
    assert runs == [5, 5, 5, 5]


def test_inputs_with_gradients_are_not_kept(runs):
    kernel = NTKernel.from_model(make_network())
    x = make_data(5)[0].requires_grad_(True)
    kernel(x).to_dense()
    assert kernel.network._recent == []
    with torch.no_grad():
        kernel(x).to_dense()
    assert kernel.network._recent[0][1].tensors()[0].grad_fn is None
    kernel(x).to_dense().sum().backward()
    assert x.grad is not None


def test_gradients_asked_of_an_operator_stay_with_it():
    kernel = NTKernel.from_model(make_network())
    x, _ = make_data(5)
    kernel(x).evaluate_kernel().requires_grad_(True)
    assert not any(t.requires_grad for t in kernel.network._recent[0][1].tensors())


def test_nothing_keeps_a_model_alive():
    def make():
        x, y = make_data(20)
        kernel = NTKernel.from_model(make_network())
        likelihood = gpytorch.likelihoods.GaussianLikelihood().double()
        model = ExactModel(x, y, likelihood, kernel)
        objective = gpytorch.mlls.ExactMarginalLogLikelihood(likelihood, model)
        objective(model(x), y).backward()
        model.eval()
        with torch.no_grad():
            assert model(make_data(4, seed=1)[0]).variance.shape == (4,)
        tensor = kernel.network._recent[0][1].tensors()[0]
        return [weakref.ref(o) for o in (model, kernel, kernel.network.linearized, tensor)]

    references = make()
    gc.collect()
    assert [r() for r in references] == [None] * 4


def test_a_prior_belongs_to_one_network():
    prior = Layerwise()
    NTKernel.from_model(make_network(), prior=prior)
    with pytest.raises(ValueError, match="already belongs"):
        NTKernel.from_model(make_network(hidden=(4,)), prior=prior)
