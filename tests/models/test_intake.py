"""Everything that training data comes in gives the same posterior; what doesn't fit is refused."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import (
    DataLoader,
    Dataset,
    IterableDataset,
    SubsetRandomSampler,
    TensorDataset,
)

from lingp.likelihoods import Gaussian
from lingp.models import LinearizedGP

N = 24


@pytest.fixture(scope="module")
def net():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 1)).double()


@pytest.fixture(scope="module")
def data():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(N, 2, generator=generator, dtype=torch.float64)
    return x, x.sin().sum(1, keepdim=True)


class Examples(Dataset):
    def __init__(self, x, y):
        self.x, self.y = x, y

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        return self.x[i], self.y[i]


class Stream(IterableDataset):
    def __init__(self, x, y):
        self.x, self.y = x, y

    def __iter__(self):
        return iter(zip(self.x, self.y, strict=True))


FORMS = {
    "tensors": lambda x, y: (x, y),
    "flat targets": lambda x, y: (x, y[:, 0]),
    "pair": lambda x, y: ((x, y),),
    "numpy": lambda x, y: (x.numpy(), y.numpy()),
    "read-only, reversed numpy": lambda x, y: (x.numpy()[::-1].copy()[::-1], y.numpy()),
    "lists": lambda x, y: (x.tolist(), y.tolist()),
    "tensor dataset": lambda x, y: (TensorDataset(x, y),),
    "dataset": lambda x, y: (Examples(x, y),),
    "iterable dataset": lambda x, y: (Stream(x, y),),
    "loader": lambda x, y: (DataLoader(TensorDataset(x, y), batch_size=7),),
    "shuffling loader": lambda x, y: (DataLoader(TensorDataset(x, y), batch_size=7, shuffle=True),),
    "iterable loader": lambda x, y: (DataLoader(Stream(x, y), batch_size=5),),
    "list of batches": lambda x, y: (list(zip(x.split(7), y.split(7), strict=True)),),
    "tuple of batches": lambda x, y: (tuple(zip(x.split(7), y.split(7), strict=True)),),
    "generator": lambda x, y: (iter(zip(x.split(7), y.split(7), strict=True)),),
    "one row at a time": lambda x, y: (zip(x.split(1), y.split(1), strict=True),),
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_gives_the_same_posterior(net, data, form):
    x, y = data
    expected = LinearizedGP(net, Gaussian(0.1), mean="refit").fit(x, y)
    gp = LinearizedGP(net, Gaussian(0.1), mean="refit").fit(*FORMS[form](x, y))
    close = torch.testing.assert_close
    close(gp.predict(x).mean, expected.predict(x).mean, rtol=1e-9, atol=1e-12)
    close(gp.predict(x).variance, expected.predict(x).variance, rtol=1e-9, atol=0)
    close(gp.log_marginal_likelihood(), expected.log_marginal_likelihood(), rtol=1e-9, atol=0)


def test_float32_arrays_and_whole_numbers_are_taken(net, data):
    x, y = data
    rounded = LinearizedGP(net).fit(x.float().numpy(), y.float().numpy()).predict(x)
    expected = LinearizedGP(net).fit(x.float().double(), y.float().double()).predict(x)
    torch.testing.assert_close(rounded.variance, expected.variance)
    whole = LinearizedGP(net, mean="refit").fit(x, np.arange(N))
    expected = LinearizedGP(net, mean="refit").fit(x, torch.arange(N).double())
    torch.testing.assert_close(whole.predict(x).mean, expected.predict(x).mean)


@pytest.mark.parametrize(
    ("options", "rows"),
    [
        ({"drop_last": True, "batch_size": 10}, 20),
        ({"sampler": SubsetRandomSampler(range(12)), "batch_size": 5}, 12),
        ({"sampler": SubsetRandomSampler(range(12)), "batch_size": 5, "drop_last": True}, 10),
    ],
)
def test_rows_count_as_often_as_they_are_seen(net, data, options, rows):
    """Not len(dataset): a loader that drops or samples gives what it gives."""
    x, y = data
    seen = []

    class Recorded(Examples):
        def __getitem__(self, i):
            seen.append(i)
            return super().__getitem__(i)

    gp = LinearizedGP(net, Gaussian(0.1)).fit(DataLoader(Recorded(x, y), **options))
    kept = seen[:rows] if "drop_last" in options else seen
    assert f"N·C = {rows}·1" in str(gp.inference_choice)
    expected = LinearizedGP(net, Gaussian(0.1)).fit(x[kept], y[kept])
    evidence, wanted = gp.log_marginal_likelihood(), expected.log_marginal_likelihood()
    torch.testing.assert_close(evidence, wanted, rtol=1e-9, atol=0)


class TwoInputs(nn.Module):
    def __init__(self):
        super().__init__()
        self.left, self.right = nn.Linear(2, 1), nn.Linear(2, 1)

    def forward(self, left, right):
        return torch.tanh(self.left(left)) * self.right(right)


def test_several_inputs_and_dicts(data):
    x, y = data
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = TwoInputs().double()
    forms = [(x, x.cos()), [x, x.cos()], {"left": x, "right": x.cos()}]
    forms += [(x.numpy(), x.cos().numpy())]
    expected = LinearizedGP(net).fit(forms[0], y)
    for form in forms:
        gp = LinearizedGP(net).fit(form, y)
        torch.testing.assert_close(gp.predict(form).variance, expected.predict(form).variance)
    loader = DataLoader(TensorDataset(x, y), batch_size=7)
    gp = LinearizedGP(net).fit(((b, b.cos()), t) for b, t in loader)
    torch.testing.assert_close(gp.predict(forms[0]).variance, expected.predict(forms[0]).variance)


def bad(x, value):
    x = x.clone()
    x[3, 0] = value
    return x


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (lambda x, y: (bad(x, float("nan")), y), ValueError, "X: has 1 NaN.*row 3"),
        (lambda x, y: (x, bad(y, float("inf"))), ValueError, "y: has 1 NaN or inf.*row 3"),
        (lambda x, y: ([(x, bad(y, float("nan")))],), ValueError, "targets in batch 0: has 1 NaN"),
        (lambda x, y: (x, y[:5]), ValueError, "24 rows of inputs, but 5 targets"),
        (lambda x, y: (x, y.expand(N, 3)), ValueError, r"y: has shape \(N, 3\).*\(N, 1\)"),
        (lambda x, y: (x,), TypeError, r"y: missing.*fit\(X, y\)"),
        (lambda x, y: ([x, y],), TypeError, r"\(inputs, targets\).*got Tensor.*fit\(X, y\)"),
        (lambda x, y: ([(x, x, y)],), ValueError, r"weights in batch 0.*\(\(x1, x2\), y\)"),
        (lambda x, y: ([(x, y, y, y)],), TypeError, r"tuple of 4 in batch 0.*\(\(x1, x2\), y\)"),
        (lambda x, y: ([],), ValueError, "no batches"),
        (lambda x, y: (x[:0], y[:0]), ValueError, "X: has no rows"),
        (lambda x, y: (x, 1.0), ValueError, "y: expected one target per row"),
        (lambda x, y: (np.array(["a"] * N), y), TypeError, "X: expected numbers"),
        (lambda x, y: (x.to(torch.complex64), y), TypeError, "X: expected real numbers"),
        (lambda x, y: (5,), TypeError, "X: expected arrays, a Dataset.*got int"),
        (lambda x, y: ((x, x[:3]), y), ValueError, "rows"),
    ],
)
def test_wrong_data_is_named(net, data, arguments, error, message):
    with pytest.raises(error, match=message):
        LinearizedGP(net).fit(*arguments(*data))


def test_targets_are_never_broadcast(data):
    x, y = data
    net = nn.Linear(2, 3).double()
    with pytest.raises(ValueError, match=r"y: has shape \(N, 1\).*output asks for \(N, 3\)"):
        LinearizedGP(net).fit(x, y)


def test_new_inputs_are_checked(net, data):
    x, y = data
    gp = LinearizedGP(net).fit(x, y)
    for call in (gp.predict, gp.posterior, gp.sample):
        with pytest.raises(ValueError, match="X: has 1 NaN"):
            call(bad(x, float("nan")))
        with pytest.raises(ValueError, match="X: has no rows"):
            call(x[:0])


@pytest.mark.parametrize("budget", [None, 20_000])
@pytest.mark.parametrize("rows", [1, N])
def test_changing_data_after_fit_changes_nothing(net, data, budget, rows):
    """Neither where factors are kept (they may share memory with inputs) nor where they are not."""
    x, y = (t[:rows].clone() for t in data)
    for inputs, targets in ((x, y), (x.numpy(), y.numpy())):
        gp = LinearizedGP(net, memory_budget=budget).fit(inputs, targets)
        expected = gp.predict(data[0]).variance, gp.log_marginal_likelihood().item()
        saved = x.clone(), y.clone()
        x.zero_()
        y.zero_()
        gp.prior.precision = 2.0
        gp.predict(data[0])
        gp.prior.precision = 1.0
        torch.testing.assert_close(gp.predict(data[0]).variance, expected[0], rtol=1e-12, atol=0)
        assert gp.log_marginal_likelihood().item() == pytest.approx(expected[1], rel=1e-12)
        x.copy_(saved[0])
        y.copy_(saved[1])
