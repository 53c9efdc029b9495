"""What is in a saved file, and what a loaded GP can do."""

from __future__ import annotations

import pytest
import torch
from saved_cases import (
    KINDS,
    LABELS,
    X,
    Y,
    make_gp,
    make_inputs,
    make_net,
    results,
    same,
    through_file,
)
from torch import nn

import lingp
from lingp.likelihoods import (
    Categorical,
)
from lingp.models import LinearizedGP
from lingp.priors import UnitWise
from lingp.saving import SavedFileError


def leaves_of(value):
    if isinstance(value, dict):
        for key, inner in value.items():
            yield key
            yield from leaves_of(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from leaves_of(inner)
    else:
        yield value


def rows_found(path, rows):
    """How many of some rows of numbers a file has, in either precision, anywhere in its bytes."""
    content = path.read_bytes()
    exact = [row.contiguous().numpy().tobytes() in content for row in rows.double()]
    rounded = [row.contiguous().numpy().tobytes() in content for row in rows.float()]
    return sum(a or b for a, b in zip(exact, rounded, strict=True))


@pytest.mark.parametrize("kind", KINDS)
def test_file_has_tensors_numbers_and_words_only(tmp_path, kind):
    inference, include_data = KINDS[kind]
    gp = make_gp(Categorical(), 3, LABELS, inference=inference, mean="refit")
    gp.save(tmp_path / "model.lingp", include_data=include_data)
    content = torch.load(tmp_path / "model.lingp", weights_only=True)
    assert content["version"] == 2
    assert content["lingp"] == lingp.__version__
    kinds = {type(leaf) for leaf in leaves_of(content)}
    assert kinds <= {torch.Tensor, int, float, str, bool, type(None)}


@pytest.mark.parametrize("mean", ["network", "refit"])
@pytest.mark.parametrize("likelihood", ["gaussian", "heteroscedastic"])
def test_weight_space_file_has_no_training_data(tmp_path, likelihood, mean):
    outputs = 1 if likelihood == "gaussian" else 2
    gp = make_gp(likelihood, outputs, inference="weight_space", mean=mean)
    path = tmp_path / "model.lingp"
    saved = gp.save(path)
    assert "without the 20 rows of training data" in str(saved)
    assert rows_found(path, X) == rows_found(path, Y) == rows_found(path, gp.linearized(X)) == 0
    gp.save(path, include_data=True)
    assert rows_found(path, X) == rows_found(path, Y) == len(X)


def test_sparse_file_has_inducing_inputs_and_says_so(tmp_path):
    gp = make_gp(inference=lingp.Sparse(4))
    saved = gp.save(tmp_path / "model.lingp")
    assert "except for the layers' values at 4 inducing inputs, which are" in str(saved)
    assert rows_found(tmp_path / "model.lingp", X) == 4
    assert rows_found(tmp_path / "model.lingp", Y) == 0


def test_user_given_inducing_inputs_are_not_called_training_inputs(tmp_path):
    gp = make_gp(inference=lingp.Sparse(inducing=make_inputs(4, seed=5)))
    saved = gp.save(tmp_path / "model.lingp")
    assert saved.training_data.endswith("at 4 inducing inputs")
    back = LinearizedGP.load(tmp_path / "model.lingp", make_net(seed=1))
    assert same(results(gp), results(back))
    assert torch.equal(back.inference.inducing, gp.inference.inducing)


def test_data_of_removed_rows_are_not_in_the_file(tmp_path):
    gp = make_gp(inference="function_space").remove_data([3, 4])
    gp.save(tmp_path / "model.lingp")
    assert rows_found(tmp_path / "model.lingp", X) == 18
    assert rows_found(tmp_path / "model.lingp", X[3:5]) == 0


@pytest.mark.parametrize("include_data", [True, "auto"])
@pytest.mark.parametrize("inference", ["weight_space", "sparse"])
def test_repr_says_whether_data_are_there(tmp_path, inference, include_data):
    back = through_file(make_gp(inference=inference), tmp_path, include_data)
    expected = "with its training data" if include_data is True else "loaded without the 20 rows"
    assert expected in repr(back)
    assert "loaded" not in repr(back.fit(X, Y, progress=False))


@pytest.mark.filterwarnings("ignore:hyperparameters did not converge")  # nor need they
@pytest.mark.parametrize("kind", KINDS)
def test_after_hyperparameters_moved(tmp_path, kind):
    # inducing points stay where those of the fit put them
    inference, include_data = KINDS[kind]
    gp = make_gp("gaussian", prior=UnitWise(), inference=inference)
    gp.optimize_hyperparameters(max_evaluations=2, num_restarts=0)
    back = through_file(gp, tmp_path, include_data)
    assert same(results(gp), results(back))
    assert back.evidence() == gp.evidence()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("change", ["added", "removed"])
def test_after_data_came_and_went(tmp_path, kind, change):
    # enough rows that sums which went along with the changes round otherwise than new ones
    x = make_inputs(150, seed=2)
    gp = LinearizedGP(make_net(), prior=2.0, inference=KINDS[kind][0], mean="refit")
    gp.fit(x, x.prod(1), progress=False).predict(X)
    if change == "added":
        gp.add_data(make_inputs(40, seed=3), torch.ones(40))
    else:
        gp.remove_data(torch.arange(0, 150, 7))
    here = results(gp)
    assert same(here, results(through_file(gp, tmp_path, KINDS[kind][1])))


def test_factors_are_made_again(tmp_path):
    gp = make_gp(inference="function_space").add_data(make_inputs(600), torch.ones(600, 1))
    back = through_file(gp, tmp_path)
    assert torch.load(tmp_path / "model.lingp", weights_only=True)["data"]["factors"] is None
    pairs = zip(*[g.laplace.training.factors().tensors() for g in (gp, back)], strict=True)
    assert all(torch.equal(old, new) for old, new in pairs)


def test_factors_are_the_same_after_rows_went(tmp_path):
    def make():
        return nn.Sequential(nn.Linear(5, 16), nn.Tanh(), nn.Linear(16, 1)).double()

    x = torch.randn(300, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    gp = LinearizedGP(make(), inference="function_space").fit(x, x.sum(1), progress=False)
    gp.remove_data(torch.arange(0, 300, 7))
    gp.save(tmp_path / "model.lingp")
    back = LinearizedGP.load(tmp_path / "model.lingp", make())
    assert torch.load(tmp_path / "model.lingp", weights_only=True)["data"]["factors"] is not None
    pairs = zip(*[g.laplace.training.factors().tensors() for g in (gp, back)], strict=True)
    # made anew in other batches, they would be rounded otherwise
    assert all(torch.equal(old, new) for old, new in pairs)


def test_iterative_goes_on_counting(tmp_path):
    # products through a kernel that is written down round otherwise than those through factors
    gp = make_gp(inference="iterative", mean="refit")
    for expected in ("products through kept factors", "dense kernel"):
        assert gp.laplace.method.product.reason.startswith(expected)
        back = through_file(gp, tmp_path)
        assert back.laplace.method.product.reason == gp.laplace.method.product.reason
        assert same(*[results(g) for g in (gp, back)])
        while gp.laplace.method.product.way != "dense":
            gp.predict(make_inputs(50), progress=False)


@pytest.mark.parametrize("kind", [k for k, v in KINDS.items() if v[1] is True or "func" in k])
def test_with_data_everything_goes_on(tmp_path, kind):
    weights = torch.linspace(0.5, 2, 20)
    y = LABELS.double()
    y[3] = torch.nan
    gp = LinearizedGP(make_net((3,)), "categorical", prior=2.0, inference=KINDS[kind][0])
    gp.fit(X, y, sample_weight=weights, class_weight="balanced", missing="nan", progress=False)
    back = through_file(gp, tmp_path, True)
    assert torch.equal(back.log_marginal_likelihood(), gp.log_marginal_likelihood())
    pairs = [gp, back]
    assert torch.equal(*(g.leave_one_out().latent_mean for g in pairs))
    found = [g.optimize_hyperparameters(max_evaluations=5) for g in pairs]
    assert found[0].value == found[1].value
    more = make_inputs(4, seed=9), torch.tensor([0.0, 1.0, 2.0, torch.nan])
    for g in pairs:
        g.add_data(*more).remove_data([1, 21])
    assert same(*map(results, pairs))
    for g in pairs:
        g.likelihood = Categorical(3)
    assert same(*map(results, pairs))


def test_inputs_of_several_parts(tmp_path):
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.left, self.right = nn.Linear(2, 3), nn.Linear(1, 3)

        def forward(self, a, b):
            return (self.left(a).tanh() * self.right(b)).sum(-1)

    for make in (lambda a, b: (a, b), lambda a, b: [a, b], lambda a, b: {"a": a, "b": b}):
        x = make(X, Y)
        gp = LinearizedGP(Two(), inference="function_space").fit(x, Y[:, 0], progress=False)
        gp.save(tmp_path / "model.lingp")
        back = LinearizedGP.load(tmp_path / "model.lingp", Two())
        predictions = [g.predict(x).variance for g in (gp, back)]
        assert torch.equal(*predictions)
        assert type(back.laplace.training.inputs[0]) is type(x)


def test_network_with_state_of_its_own(tmp_path):
    def make(seed):
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            net = nn.Sequential(nn.Linear(2, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 1))
            return net(torch.randn(30, 2)), net

    _, net = make(0)
    gp = LinearizedGP(net, inference="weight_space").fit(X.float(), Y, progress=False)
    gp.save(tmp_path / "model.lingp")
    _, other = make(1)
    before = {name: t.clone() for name, t in other.state_dict().items()}
    back = LinearizedGP.load(tmp_path / "model.lingp", other)
    assert torch.equal(*(g.predict(X).variance for g in (gp, back)))
    # the user's network stays as it is: weights, mode, whether gradients are wanted
    assert all(torch.equal(t, before[name]) for name, t in other.state_dict().items())
    assert other.training
    assert all(p.requires_grad for p in other.parameters())


def test_tables_with_a_norm(tmp_path):
    def make(seed):
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            return nn.Sequential(nn.Embedding(6, 3, max_norm=0.7), nn.Flatten(), nn.Linear(6, 1))

    tokens = torch.randint(6, (12, 2), generator=torch.Generator().manual_seed(0))
    y = tokens.sum(1, keepdim=True).double()
    gp = LinearizedGP(make(0), inference=lingp.Sparse(5)).fit(tokens, y, progress=False)
    gp.save(tmp_path / "model.lingp")
    back = LinearizedGP.load(tmp_path / "model.lingp", make(1))
    assert torch.equal(*(g.predict(tokens).variance for g in (gp, back)))


class Turned(nn.Module):
    """Computes what a number says that isn't among its weights."""

    def __init__(self, turned):
        super().__init__()
        self.linear, self.turned = nn.Linear(2, 1), turned

    def forward(self, x):
        return self.linear(x.flip(1) if self.turned else x)


def test_network_whose_code_has_changed(tmp_path):
    gp = LinearizedGP(Turned(False), inference="function_space").fit(X, Y, progress=False)
    gp.save(tmp_path / "model.lingp")
    with pytest.raises(SavedFileError, match=r"its forward\(\) has changed"):
        LinearizedGP.load(tmp_path / "model.lingp", Turned(True))


@pytest.mark.parametrize("kind", KINDS)
def test_global_random_state_is_left_alone(tmp_path, kind):
    inference, include_data = KINDS[kind]
    gp = make_gp(inference=inference, mean="refit")
    before = torch.get_rng_state()
    gp.save(tmp_path / "model.lingp", include_data=include_data)
    net = make_net(seed=1)
    LinearizedGP.load(tmp_path / "model.lingp", net)
    assert torch.equal(before, torch.get_rng_state())


def test_data_over_processes(tmp_path, monkeypatch):
    gp = make_gp()
    monkeypatch.setattr(type(gp.shards), "alone", False)
    with pytest.raises(ValueError, match="save: not available with a process_group"):
        gp.save(tmp_path / "model.lingp")


def test_trained_with_the_evidence(tmp_path):
    trained = lingp.train_with_evidence(make_net(), X, Y, steps=2, progress=False)
    back = through_file(trained.gp, tmp_path)
    assert same(results(trained.gp), results(back))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("kind", KINDS)
def test_from_one_device_to_the_other(tmp_path, kind):
    inference, include_data = KINDS[kind]
    net = make_net().cuda()
    gp = LinearizedGP(net, inference=inference, mean="refit").fit(X.cuda(), Y.cuda())
    gp.save(tmp_path / "model.lingp", include_data=include_data)
    same_device = LinearizedGP.load(tmp_path / "model.lingp", make_net(seed=1))
    assert same(results(gp), results(same_device))
    moved = LinearizedGP.load(tmp_path / "model.lingp", make_net(seed=1), map_location="cpu")
    for what, value in results(gp).items():
        if what != "draws of the function":
            torch.testing.assert_close(value.cpu(), results(moved)[what], rtol=1e-8, atol=1e-9)


def test_map_location(tmp_path):
    gp = make_gp(inference="iterative", mean="refit")
    back = through_file(gp, tmp_path, map_location="cpu")
    assert same(results(gp), results(back))
    assert back.linearized.device.type == "cpu"
