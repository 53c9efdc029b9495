"""NTKernel against dense Jacobians: values, diagonals, batches, inputs, derivatives."""

import pytest
import torch
from gpytorch.kernels import RBFKernel, ScaleKernel
from gpytorch.lazy import LazyEvaluatedKernelTensor
from kernel_cases import dense_jacobian, make_data, make_network
from torch import nn

from lingp.gpytorch_models import NetworkMean, NTKernel
from lingp.operators import NTKLinearOperator
from lingp.priors import Layerwise


class TokenNetwork(nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.head = nn.Embedding(9, 5), nn.Linear(5, 2)

    def forward(self, ids):
        return self.head(torch.tanh(self.table(ids)).mean(1))


def images():
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(2, 3, 3, padding=1), nn.BatchNorm2d(3), nn.ReLU(), nn.Flatten(), nn.Linear(48, 3)
    ).double()
    net.eval()
    return net, torch.randn(7, 2, 4, 4).double(), {"input_shape": (2, 4, 4)}


def tokens():
    torch.manual_seed(0)
    return TokenNetwork().double(), torch.randint(0, 9, (7, 6)), {"input_dtype": torch.long}


def scalars():
    """A network of (N,) to (N,)."""

    class Scalar(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = make_network(inputs=1)

        def forward(self, x):
            return self.inner(x.unsqueeze(-1)).squeeze(-1)

    return Scalar(), torch.linspace(-1, 1, 7).double(), {"input_shape": ()}


@pytest.mark.parametrize("case", [images, tokens, scalars])
def test_inputs_of_other_shapes_travel_flattened(case):
    net, x, options = case()
    kernel = NTKernel.from_model(net, prior=0.5, **options)
    flat = x.reshape(len(x), -1).double()
    j = dense_jacobian(net, x)
    dense = 2.0 * j @ j.mT
    torch.testing.assert_close(kernel(flat).to_dense(), dense)
    torch.testing.assert_close(kernel(flat[:3], flat[3:]).to_dense(), dense_rows(net, x, 3))
    torch.testing.assert_close(kernel(flat, diag=True), dense.diagonal())
    mean = NetworkMean(kernel)(flat)
    torch.testing.assert_close(mean, net(x).detach().reshape(mean.shape))


def dense_rows(net, x, count):
    return 2.0 * dense_jacobian(net, x[:count]) @ dense_jacobian(net, x[count:]).mT


def test_a_wrong_number_of_columns_is_refused():
    net, _, options = images()
    with pytest.raises(ValueError, match="needs 32"):
        NTKernel.from_model(net, **options)(torch.randn(3, 31).double()).to_dense()


@pytest.mark.parametrize("outputs", [1, 3])
@pytest.mark.parametrize("parameters", ["all", "last_layer", "*.bias"])
def test_parameter_subsets_and_layerwise_priors(outputs, parameters):
    net = make_network(outputs=outputs)
    x, _ = make_data(6)
    z, _ = make_data(4, seed=1)
    kernel = NTKernel.from_model(net, parameters, Layerwise())
    names = kernel.prior.names
    precision = torch.linspace(0.5, 3.0, len(names), dtype=torch.float64)
    kernel.prior.precision = precision

    sizes, keep = [], []
    for name, p in net.named_parameters():
        keep += [name in names] * p.numel()
        sizes += [p.numel()] if name in names else []
    keep = torch.tensor(keep)
    spread = (1 / precision).repeat_interleave(torch.tensor(sizes))
    j, k = dense_jacobian(net, x)[:, keep], dense_jacobian(net, z)[:, keep]
    torch.testing.assert_close(kernel(x).to_dense(), j * spread @ j.mT)
    torch.testing.assert_close(kernel(x, z).to_dense(), j * spread @ k.mT)


def test_evaluation_is_lazy(monkeypatch):
    net = make_network(outputs=2)
    x, _ = make_data(8)
    kernel = NTKernel.from_model(net)
    lazy = kernel(x)
    assert isinstance(lazy, LazyEvaluatedKernelTensor)
    operator = lazy.evaluate_kernel()
    assert isinstance(operator, NTKLinearOperator)
    assert isinstance(ScaleKernel(kernel).double()(x).evaluate_kernel(), NTKLinearOperator)
    j = dense_jacobian(net, x)
    monkeypatch.setattr(NTKLinearOperator, "to_dense", None)
    torch.testing.assert_close(lazy.diagonal(), (j @ j.mT).diagonal())
    torch.testing.assert_close(lazy[2:6, 2:6].diagonal(), (j @ j.mT).diagonal()[2:6])


def test_diagonal_of_two_inputs():
    net = make_network(outputs=2)
    x, z = make_data(20)[0], make_data(20, seed=1)[0]
    kernel = NTKernel.from_model(net)
    expected = (dense_jacobian(net, x) * dense_jacobian(net, z)).sum(1)
    torch.testing.assert_close(kernel(x, z).diagonal(), expected)
    torch.testing.assert_close(kernel(x, z, diag=True), expected)


@pytest.mark.parametrize("outputs", [1, 2])
def test_batches_broadcast(outputs):
    """(2, 1, N, D) against (3, M, D), and against M x D, under a kernel's batch shape too."""
    net = make_network(outputs=outputs)
    x = make_data(10)[0].view(2, 1, 5, 3)
    z = make_data(12, seed=1)[0].view(3, 4, 3)

    def dense(a, b):
        return dense_jacobian(net, a) @ dense_jacobian(net, b).mT

    def paired(a, b):
        return (dense_jacobian(net, a) * dense_jacobian(net, b)).sum(1)

    expected = torch.stack([torch.stack([dense(x[i, 0], z[j]) for j in range(3)]) for i in (0, 1)])
    kernel = NTKernel.from_model(net)
    torch.testing.assert_close(kernel(x, z).to_dense(), expected)
    torch.testing.assert_close(kernel(x, z[0]).to_dense(), expected[:, :1])
    torch.testing.assert_close(kernel(x[0, 0], z).to_dense(), expected[0])
    wide = z[:, :1].expand(3, 5, 3)
    torch.testing.assert_close(
        kernel(x, wide).diagonal(),
        torch.stack([torch.stack([paired(x[i, 0], wide[j]) for j in range(3)]) for i in (0, 1)]),
    )
    repeated = NTKernel.from_model(net, batch_shape=torch.Size([2]))
    lazy = repeated(z[0])
    assert lazy.shape == (2, 4 * outputs, 4 * outputs)
    torch.testing.assert_close(lazy.to_dense(), dense(z[0], z[0]).expand(2, -1, -1))
    torch.testing.assert_close(lazy[1].to_dense(), dense(z[0], z[0]))
    torch.testing.assert_close(lazy.diagonal()[1], dense(z[0], z[0]).diagonal())


def test_batch_kernels_share_hyperparameters():
    kernel = NTKernel.from_model(make_network(), batch_shape=torch.Size([3, 2]))
    part, wide = kernel[0], kernel.expand_batch(5, 3, 2)
    assert part.batch_shape == (2,)
    assert wide.batch_shape == (5, 3, 2)
    assert kernel.batch_shape == (3, 2)
    assert part.prior is wide.prior is kernel.prior
    assert part.network is kernel.network
    with pytest.raises(RuntimeError):
        kernel.expand_batch(5)


@pytest.mark.parametrize("outputs", [1, 2])
def test_gradients_for_inputs(outputs):
    net = make_network(outputs=outputs)
    kernel = NTKernel.from_model(net, prior=0.5)
    x, z = make_data(5)[0], make_data(4, seed=1)[0]
    weight = torch.randn(5 * outputs, 5 * outputs, dtype=torch.float64)

    def gradients(square, cross, diagonal):
        a = x.clone().requires_grad_(True)
        b = z.clone().requires_grad_(True)
        part = weight[:, : 4 * outputs]
        value = (square(a) * weight).sum() + (cross(a, b) * part).sum() + diagonal(a).square().sum()
        return torch.autograd.grad(value, (a, b))

    def dense(a, b):
        return 2.0 * dense_jacobian(net, a) @ dense_jacobian(net, b).mT

    expected = gradients(lambda a: dense(a, a), dense, lambda a: dense(a, a).diagonal())
    found = gradients(
        lambda a: kernel(a).to_dense(),
        lambda a, b: kernel(a, b).to_dense(),
        lambda a: kernel(a, diag=True),
    )
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-9)


def test_gradient_for_one_of_two_equal_inputs():
    """K(x, x.detach()) has half the derivative of K(x, x), and two leaves have one half each."""
    net = make_network()
    kernel = NTKernel.from_model(net)
    x = make_data(4)[0].requires_grad_(True)
    (both,) = torch.autograd.grad(kernel(x, x).to_dense().sum(), x)
    (one,) = torch.autograd.grad(kernel(x, x.detach()).to_dense().sum(), x)
    torch.testing.assert_close(one, both / 2)
    twin = x.detach().requires_grad_(True)  # the same memory, another leaf
    first, second = torch.autograd.grad(kernel(x, twin).to_dense().sum(), (x, twin))
    torch.testing.assert_close(first, both / 2)
    torch.testing.assert_close(second, both / 2)
    whole = torch.cat([x, x])  # slices of one tensor, as variational strategies make them
    covar = kernel(whole)[:4, :4].evaluate_kernel()
    assert covar.is_symmetric
    torch.testing.assert_close(torch.autograd.grad(covar.to_dense().sum(), x)[0], both)


def test_sums_and_products_with_other_kernels():
    net = make_network()
    x, z = make_data(6)[0], make_data(4, seed=1)[0]
    ntk, rbf = NTKernel.from_model(net), RBFKernel().double()
    for a, b in ((x, x), (x, z)):
        k, r = ntk(a, b).to_dense(), rbf(a, b).to_dense()
        for kernel in (ntk + rbf, rbf + ntk):
            torch.testing.assert_close(kernel(a, b).to_dense(), k + r)
        for kernel in (ntk * rbf, rbf * ntk):
            torch.testing.assert_close(kernel(a, b).to_dense(), k * r)
        torch.testing.assert_close((ntk + rbf + rbf)(a, b).to_dense(), k + 2 * r)
        torch.testing.assert_close((ntk * rbf + ntk)(a, b).to_dense(), k * r + k)
    torch.testing.assert_close((ntk + rbf)(x, diag=True), (ntk + rbf)(x).to_dense().diagonal())


def test_the_last_dimension_is_no_batch():
    kernel = NTKernel.from_model(make_network())
    x = make_data(3)[0]
    with pytest.raises(ValueError, match="last_dim"):
        kernel.forward(x, x, last_dim_is_batch=True)


def test_active_dimensions_of_kernel_and_mean():
    net = make_network(inputs=2)
    x = make_data(5, inputs=4)[0]
    kernel = NTKernel.from_model(net, active_dims=(3, 1))
    j = dense_jacobian(net, x[:, [3, 1]])
    torch.testing.assert_close(kernel(x).to_dense(), j @ j.mT)
    mean = NetworkMean(kernel)(x)
    torch.testing.assert_close(mean, net(x[:, [3, 1]]).squeeze(1).detach())
