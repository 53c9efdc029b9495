"""A GP that was loaded without its training data: what it can do, and what it says it can't."""

from __future__ import annotations

import pytest
import torch
from saved_cases import X, Y, make_gp, results, same, through_file

from lingp.likelihoods import KnownNoiseGaussian, StudentT
from lingp.saving import DataLeftOutError


class TestWithoutData:
    @pytest.fixture(params=["weight_space", "sparse"])
    def pair(self, request, tmp_path):
        gp = make_gp(inference=request.param, mean="refit")
        return gp, through_file(gp, tmp_path)

    def test_evidence_and_mode_are_kept(self, pair):
        gp, back = pair
        assert back.evidence() == gp.evidence()
        assert str(back.mode()) == str(gp.mode())

    @pytest.mark.parametrize(
        "call",
        [
            lambda gp: gp.add_data(X, Y),
            lambda gp: gp.remove_data([0]),
            lambda gp: gp.leave_one_out(),
            lambda gp: gp.log_marginal_likelihood(),
            lambda gp: gp.optimize_hyperparameters(),
            lambda gp: gp.optimize_hyperparameters(method="mackay"),
            lambda gp: gp.optimize_hyperparameters(method="l-bfgs"),
            lambda gp: gp.optimize_hyperparameters(objective="leave_one_out"),
            lambda gp: gp.optimize_hyperparameters(validation=(X, Y)),
        ],
    )
    def test_what_takes_data_says_so(self, pair, call):
        _, back = pair
        before = results(back)
        with pytest.raises(DataLeftOutError, match="save it with save\\(path, include_data=True"):
            call(back)
        assert same(before, results(back))  # and nothing has changed

    def test_other_hyperparameters_are_noticed(self, pair):
        _, back = pair
        before, noise = results(back), back.likelihood.noise.item()
        back.likelihood.noise = 5.0
        for call in (back.predict, back.sample, back.posterior, lambda _: back.evidence()):
            with pytest.raises(DataLeftOutError, match="other hyperparameters"):
                call(X)
        back.likelihood.noise = noise
        assert same(before, results(back))
        back.prior.precision = 7.0
        with pytest.raises(DataLeftOutError, match="other hyperparameters"):
            back.predict(X)

    def test_another_likelihood_is_noticed(self, pair):
        _, back = pair
        back.likelihood = StudentT()
        with pytest.raises(DataLeftOutError, match="another likelihood"):
            back.predict(X)

    def test_can_be_saved_again(self, pair, tmp_path):
        gp, back = pair
        again = through_file(back, tmp_path)
        assert same(results(gp), results(again))
        assert again.evidence() == gp.evidence()
        with pytest.raises(ValueError, match="include_data: got True, but"):
            back.save(tmp_path / "other.lingp", include_data=True)

    def test_can_be_fitted_again(self, pair):
        gp, back = pair
        back.fit(X, Y, progress=False)
        assert same(results(gp), results(back))
        back.optimize_hyperparameters()


def test_known_quantities_without_data(tmp_path):
    y = torch.stack([Y[:, 0], torch.full_like(Y[:, 0], 0.2)], -1)
    gp = make_gp(KnownNoiseGaussian(), 1, y.unsqueeze(1), inference="weight_space")
    back = through_file(gp, tmp_path)
    assert torch.equal(*(g.predict(X, known=0.3).variance for g in (gp, back)))
