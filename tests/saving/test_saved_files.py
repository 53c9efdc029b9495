"""Files that can't be loaded, and GPs that can't be saved: what the errors say."""

from __future__ import annotations

import re

import pytest
import torch
from saved_cases import make_inputs, make_net
from torch import nn

import lingp
from lingp.likelihoods import AutodiffLikelihood, Categorical, Gaussian, Tempered
from lingp.models import LinearizedGP
from lingp.priors import Isotropic, Layerwise
from lingp.saving import SavedFileError

X = make_inputs(8)
Y = X.sum(1, keepdim=True)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "model.lingp"


def make_gp(likelihood="gaussian", **options):
    options = {"inference": "weight_space", **options}
    return LinearizedGP(make_net(), likelihood, **options).fit(X, Y, progress=False)


@pytest.fixture
def saved(path):
    make_gp().save(path)
    return path


def rewritten(path, **changes):
    content = torch.load(path, weights_only=True)
    torch.save(content | changes, path)


class TestAnotherNetwork:
    def refused(self, path, net, *words):
        with pytest.raises(SavedFileError) as caught:
            LinearizedGP.load(path, net)
        message = str(caught.value)
        assert message.startswith(f"net: {path} is of a network built differently")
        for word in words:
            assert word in message

    def test_other_width(self, saved):
        net = nn.Sequential(nn.Linear(2, 5), nn.Tanh(), nn.Linear(5, 1))
        self.refused(saved, net, "the shape of 0.weight is [4, 2] in the file, [5, 2] in net")

    def test_other_activation(self, saved):
        net = nn.Sequential(nn.Linear(2, 4), nn.ReLU(), nn.Linear(4, 1))
        self.refused(saved, net, "1 is Tanh() in the file, ReLU() in net")

    def test_other_options(self, path):
        nets = [nn.Sequential(nn.Conv1d(1, 2, 3, padding=p), nn.Flatten()) for p in (1, 2)]
        x = torch.randn(5, 1, 4)
        y = torch.randn(5, nets[0](x).shape[1])
        LinearizedGP(nets[0], inference="weight_space").fit(x, y, progress=False).save(path)
        self.refused(path, nets[1], "padding=(1,)", "padding=(2,)")

    def test_more_layers(self, saved):
        net = nn.Sequential(*make_net(), nn.Linear(1, 1), nn.Tanh(), nn.Tanh())
        self.refused(saved, net, "3.weight is [1, 1] in net, and isn't in the file", "; and 1 more")

    def test_fewer_layers(self, saved):
        self.refused(saved, make_net()[:1], "2.weight is [1, 4] in the file, and isn't in net")

    def test_no_network(self, saved):
        with pytest.raises(TypeError, match=r"net: got dict; expected a torch.nn.Module"):
            LinearizedGP.load(saved, {})

    def test_dtype_gradients_and_wrappers_do_not_matter(self, saved):
        net = make_net(seed=1).float().requires_grad_(False)
        for given in (net, nn.DataParallel(net), torch.compile(net)):
            back = LinearizedGP.load(saved, given)
            assert torch.equal(back.predict(X).mean, make_gp().predict(X).mean)


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 0.9, 0.999])
def test_truncated_files(saved, share):
    whole = saved.read_bytes()
    saved.write_bytes(whole[: int(share * len(whole))])
    with pytest.raises(SavedFileError, match=r"can't be read: it is damaged or cut off"):
        LinearizedGP.load(saved, make_net())


def test_newer_format(saved):
    rewritten(saved, version=3, lingp="9.1")
    expected = f"has format 3, written by lingp 9.1; this is lingp {lingp.__version__}"
    with pytest.raises(SavedFileError, match=re.escape(expected)):
        LinearizedGP.load(saved, make_net())


@pytest.mark.parametrize("include_data", [False, True])
def test_older_format(path, include_data):
    """A file from before means were scaled predicts as it did then."""
    net, y = make_net((3,)), torch.arange(8) % 3
    gp = LinearizedGP(net, "categorical", inference="weight_space", mean_scale=1.0)
    gp.fit(X, y, progress=False).save(path, include_data=include_data)
    content = torch.load(path, weights_only=True)
    del content["options"]["mean_scale"], content["matched"], content["sureness"]
    torch.save(content | {"version": 1}, path)
    back = LinearizedGP.load(path, net)
    assert back.mean_scale == 1.0
    assert torch.equal(back.predict(X).probs, gp.predict(X).probs)


@pytest.mark.parametrize("include_data", [False, True])
def test_a_scale_that_was_given_is_not_taken_for_a_matched_one(path, include_data):
    net, y = make_net((3,)), torch.arange(8) % 3
    gp = LinearizedGP(net, "categorical", inference="weight_space", mean_scale=7.0)
    gp.fit(X, y, progress=False).save(path, include_data=include_data)
    back = LinearizedGP.load(path, net)
    assert back.mean_scale == 7.0
    gp.mean_scale = back.mean_scale = "matched"
    if include_data:
        assert back.mean_scale == pytest.approx(gp.mean_scale)
    else:
        with pytest.raises(RuntimeError, match="the scale of the mean that is matched"):
            back.predict(X)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (torch.zeros(2), "it has a Tensor"),
        ({"0.weight": torch.zeros(2)}, "it has a dict with 0.weight"),
        ({"format": "lingp training 1"}, "as a checkpoint of training has"),
    ],
)
def test_another_kind_of_file(path, content, words):
    torch.save(content, path)
    with pytest.raises(SavedFileError, match=words):
        LinearizedGP.load(path, make_net())


def test_pickles_are_not_run(path):
    torch.save(make_gp(), path)
    with pytest.raises(SavedFileError, match=r"isn't a file that LinearizedGP.save made"):
        LinearizedGP.load(path, make_net())


def test_text_is_not_a_file_of_ours(path):
    path.write_text("a,b\n1,2\n")
    with pytest.raises(SavedFileError, match=r"isn't a file that LinearizedGP.save made"):
        LinearizedGP.load(path, make_net())


def test_missing_file_and_folder(tmp_path):
    with pytest.raises(FileNotFoundError):
        LinearizedGP.load(tmp_path / "none.lingp", make_net())
    with pytest.raises(FileNotFoundError, match=r"path: the folder .*nowhere doesn't exist"):
        make_gp().save(tmp_path / "nowhere" / "model.lingp")


def test_older_file_survives_a_failed_save(saved, monkeypatch):
    before = saved.read_bytes()

    def broken(*_):
        raise OSError("disk full")

    monkeypatch.setattr("os.fsync", broken)
    with pytest.raises(OSError, match="disk full"):
        make_gp(prior=3.0).save(saved)
    assert saved.read_bytes() == before
    assert [p.name for p in saved.parent.iterdir()] == [saved.name]


def test_older_file_is_replaced(saved):
    gp = make_gp(prior=3.0)
    written = gp.save(str(saved))
    assert written.num_bytes == saved.stat().st_size
    assert LinearizedGP.load(saved, make_net()).prior.precision.item() == pytest.approx(3.0)
    assert [p.name for p in saved.parent.iterdir()] == [saved.name]


class TestWhatCannotBeSaved:
    def test_before_fit(self, path):
        with pytest.raises(RuntimeError, match=r"call fit\(X, y\) first"):
            LinearizedGP(make_net()).save(path)

    @pytest.mark.parametrize("inference", ["function_space", "iterative"])
    def test_without_needed_data(self, path, inference):
        gp = make_gp(inference=inference)
        with pytest.raises(ValueError, match=r"include_data: got False, but .* predicts with the"):
            gp.save(path, include_data=False)
        assert not path.exists()

    def test_other_values_of_include_data(self, path):
        with pytest.raises(ValueError, match='include_data: expected "auto", True or False'):
            make_gp().save(path, include_data="all")

    def test_inference_of_ones_own(self, path):
        def mine(training, prior, root):
            return lingp.inference.WeightSpace(training, prior, root)

        with pytest.raises(TypeError, match="inference: a LinearizedGP with mine can't be saved"):
            make_gp(inference=mine).save(path)

    def test_exact_classes(self, path):
        gp = make_gp(inference=lingp.inference.WeightSpace)
        gp.save(path)
        back = LinearizedGP.load(path, make_net())
        assert back.inference is lingp.inference.WeightSpace
        assert torch.equal(back.predict(X).variance, gp.predict(X).variance)


class Halved(Isotropic):
    """A prior of the user's own."""

    def variances(self):
        return 0.5 * super().variances()


class MyNoise(Gaussian):
    """A likelihood of the user's own."""


class TestObjectsOfOnesOwn:
    def test_prior(self, path):
        gp = make_gp(prior=Halved(3.0))
        gp.save(path)
        with pytest.raises(SavedFileError) as caught:
            LinearizedGP.load(path, make_net())
        assert str(caught.value) == (
            "prior: the file has Halved, which isn't a class of lingp's own; make one as before "
            "and give it: LinearizedGP.load(path, net, prior=...). Its hyperparameters get the "
            "values in the file"
        )
        back = LinearizedGP.load(path, make_net(), prior=Halved())
        assert torch.equal(back.predict(X).variance, gp.predict(X).variance)

    def test_older_name_of_a_tempered_gaussian(self, path):
        gp = make_gp(Tempered(Gaussian(0.3), 2.0))
        gp.save(path)
        content = torch.load(path, weights_only=True)
        content["likelihood"]["class"] = "TemperedQuadratic"
        torch.save(content, path)
        for given in (None, Tempered(Gaussian(), 1.0)):
            back = LinearizedGP.load(path, make_net(), likelihood=given)
            assert back.likelihood.is_quadratic
            assert torch.equal(back.predict(X).variance, gp.predict(X).variance)

    def test_likelihood_inside_another(self, path):
        make = lambda noise=1.0: Tempered(MyNoise(noise), 2.0)  # noqa: E731
        gp = make_gp(make(0.3))
        gp.save(path)
        with pytest.raises(SavedFileError, match="likelihood: the file has Tempered"):
            LinearizedGP.load(path, make_net())
        back = LinearizedGP.load(path, make_net(), likelihood=make())
        assert torch.equal(back.predict(X).variance, gp.predict(X).variance)

    def test_constraint(self, path):
        from gpytorch.constraints import Positive

        squared = Positive(transform=torch.square, inv_transform=torch.sqrt)
        make = lambda: Gaussian(0.5, noise_constraint=squared)  # noqa: E731
        gp = make_gp(make())
        gp.save(path)
        with pytest.raises(SavedFileError, match="with a constraint of the user's own"):
            LinearizedGP.load(path, make_net())
        back = LinearizedGP.load(path, make_net(), likelihood=make())
        assert torch.equal(back.predict(X).variance, gp.predict(X).variance)

    def test_objects_of_another_class(self, saved):
        with pytest.raises(SavedFileError, match="prior: the file has Isotropic, got Layerwise"):
            LinearizedGP.load(saved, make_net(), prior=Layerwise())
        with pytest.raises(SavedFileError, match="likelihood: the file has Gaussian, got Categ"):
            LinearizedGP.load(saved, make_net(), likelihood=Categorical())

    def test_object_with_other_hyperparameters(self, saved):
        with pytest.raises(SavedFileError, match=r"raw_noise is \[\] in the file, \[2\] here"):
            LinearizedGP.load(saved, make_net(), likelihood=Gaussian([0.1, 0.2]))

    def test_functions(self, path):
        def log_prob(y, f):
            return -0.5 * (y - f).square().sum()

        gp = make_gp(AutodiffLikelihood(log_prob))
        gp.save(path)
        with pytest.raises(SavedFileError, match="AutodiffLikelihood, which is made of functions"):
            LinearizedGP.load(path, make_net())
        back = LinearizedGP.load(path, make_net(), likelihood=AutodiffLikelihood(log_prob))
        assert torch.equal(back.predict(X).latent_mean, gp.predict(X).latent_mean)
