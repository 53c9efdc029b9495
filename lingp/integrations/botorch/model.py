"""A BoTorch model: the posterior of a linearised network, with gradients in its inputs."""

from __future__ import annotations

import copy
from typing import Any

import torch
from botorch.acquisition.objective import PosteriorTransform
from botorch.models.model import FantasizeMixin, Model
from botorch.models.transforms.input import AffineInputTransform, InputTransform
from botorch.models.transforms.outcome import OutcomeTransform, Standardize
from botorch.posteriors import Posterior
from botorch.posteriors.gpytorch import GPyTorchPosterior
from gpytorch.distributions import MultitaskMultivariateNormal, MultivariateNormal
from linear_operator.operators import DenseLinearOperator, LinearOperator, RootLinearOperator
from sklearn.utils.validation import check_is_fitted
from torch import Tensor
from typing_extensions import Self

from lingp.estimators import LinearizedGPRegressor
from lingp.integrations.botorch.latent import LatentPosterior
from lingp.integrations.botorch.noise import between_rows, noise_blocks
from lingp.integrations.botorch.observations import Observations
from lingp.likelihoods import Heteroscedastic, Tempered
from lingp.linalg.psd import lower_root
from lingp.models import LinearizedGP
from lingp.models.covariance import PosteriorCovariance

# its abstract `posterior` takes other arguments than `Model`'s
_CanFantasize: Any = FantasizeMixin


class LinearizedGPModel(Model, _CanFantasize):
    """A `LinearizedGP` as a BoTorch model, of C outputs and any batch of inputs.

    Mean and covariance are differentiable in the inputs (once), and samples too, at any number of
    points. It is of the GP as it is whenever it is asked, and is never trained by BoTorch;
    `fit_linearized_gp` makes one from data.

    Parameters
    ----------
    gp
        A fitted GP, of a network that takes rows of d numbers. Its likelihood decides what the
        outputs are: of targets with Gaussian noise, their mean; else the latent outputs.
    input_transform, outcome_transform
        BoTorch's. The GP's own data are taken as transformed already, and the transforms as
        learned: posteriors and new data are in the units before them.

    Raises
    ------
    TypeError
        If `gp` is no `LinearizedGP`.
    RuntimeError
        If it has no data yet.
    ValueError
        For a likelihood whose outputs are no values to be optimised, or a network of other inputs.

    Examples
    --------
    >>> net = torch.nn.Sequential(torch.nn.Linear(2, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
    >>> X = torch.rand(10, 2, dtype=torch.float64)
    >>> gp = lingp.LinearizedGP(net, mean="refit").fit(X, X.sum(1, keepdim=True).sin())
    >>> model = LinearizedGPModel(gp)
    >>> model.posterior(torch.rand(5, 3, 2, dtype=torch.float64)).mean.shape
    torch.Size([5, 3, 1])
    """

    gp: LinearizedGP

    def __init__(
        self,
        gp: LinearizedGP,
        *,
        input_transform: InputTransform | None = None,
        outcome_transform: OutcomeTransform | None = None,
    ) -> None:
        super().__init__()
        if not isinstance(gp, LinearizedGP):
            raise TypeError(f"gp: expected a lingp.LinearizedGP, got {type(gp).__name__}")
        if isinstance(gp.likelihood, Heteroscedastic):
            raise ValueError(
                "gp: its likelihood is Heteroscedastic, whose outputs are natural parameters, not "
                "values to be optimised; use Gaussian noise, or KnownNoiseGaussian if the noise of "
                "each observation is known"
            )
        self._condition_on(gp)
        self._outputs = tuple(range(self._num_latent))
        self._observations: Observations | None = None
        if input_transform is not None:
            self.input_transform = copy.deepcopy(input_transform)
        if outcome_transform is not None:
            self.outcome_transform = copy.deepcopy(outcome_transform)
        self.eval()

    @classmethod
    def from_estimator(cls, estimator: LinearizedGPRegressor) -> LinearizedGPModel:
        """The model of a fitted scikit-learn estimator, in the units of its data.

        Raises
        ------
        TypeError
            If it is no `LinearizedGPRegressor`.
        """
        if not isinstance(estimator, LinearizedGPRegressor):
            raise TypeError(
                f"estimator: expected a LinearizedGPRegressor, got {type(estimator).__name__}"
            )
        check_is_fitted(estimator)
        x, y = estimator.x_scaler_, estimator.y_scaler_
        offset, scale, mean, spread = map(torch.as_tensor, (x.mean, x.scale, y.mean, y.scale))
        return cls(
            estimator.gp_,
            input_transform=AffineInputTransform(len(scale), coefficient=scale, offset=offset),
            outcome_transform=_standardize(mean, spread),
        )

    @property
    def num_outputs(self) -> int:
        return len(self._outputs)

    @property
    def batch_shape(self) -> torch.Size:
        return torch.Size() if self._observations is None else self._observations.batch_shape

    def posterior(
        self,
        X: Tensor,
        output_indices: list[int] | None = None,
        observation_noise: bool | Tensor = False,
        posterior_transform: PosteriorTransform | None = None,
    ) -> Posterior:
        """Joint posterior of the outputs at q points, for each place of a batch.

        Parameters
        ----------
        X
            (batch_shape x q x d).
        output_indices
            Which outputs; all by default.
        observation_noise
            Whether the noise is added; or what is, variances (... x 1 or q x m) in the units
            after the outcome transform. Where noise was known for each target, True adds their
            mean, as BoTorch does.
        posterior_transform
            BoTorch's, applied in the end.

        Raises
        ------
        ValueError
            If shapes don't fit, or noise is wanted where it isn't Gaussian.
        """
        self.eval()
        self._check_inputs(X)
        x = self.transform_inputs(X)
        rows, outputs = x.shape[-2], self._chosen(output_indices)
        mean, covariance = self._joint(x)
        if outputs != tuple(range(self._num_latent)):
            places = self._places(rows, outputs)
            mean, covariance = mean[..., places], covariance[..., places, :][..., places]
        if observation_noise is not False:
            blocks = noise_blocks(self.gp, observation_noise, outputs, rows)
            covariance = covariance + between_rows(blocks)
        posterior: Posterior = _gaussian(mean, covariance, len(outputs))
        if hasattr(self, "outcome_transform"):
            transform = self.outcome_transform
            if output_indices is not None:
                transform = transform.subset_output(idcs=output_indices)
            posterior = _sampled(transform.untransform_posterior(posterior, X=X))
        if posterior_transform is not None:
            return posterior_transform(posterior=posterior, X=X)
        return posterior

    def subset_output(self, idcs: list[int]) -> LinearizedGPModel:
        """The model of some of the outputs, in the order given."""
        twin = self._twin()
        twin._outputs = self._chosen(idcs)
        if hasattr(self, "outcome_transform"):
            twin.outcome_transform = self.outcome_transform.subset_output(idcs=idcs)
        return twin

    def condition_on_observations(
        self, X: Tensor, Y: Tensor, noise: Tensor | None = None, **kwargs: Any
    ) -> Self:
        """A model that has seen more data; this one stays as it is, and nothing is trained.

        The same, up to rounding, as if the GP had been fitted to all data, where its mean is
        refitted. A network's own mean moves too, as that of any Gaussian process does.

        Parameters
        ----------
        X
            (batch_shape x n' x d), before the input transform.
        Y
            (batch_shape' x n' x m), before the outcome transform. Batch shapes are broadcast; a
            batch makes a batch of models.
        noise
            Variances of Y's noise (... x 1 or n' x m), after the outcome transform; by default the
            likelihood's.

        Raises
        ------
        ValueError
            If noise isn't Gaussian, or shapes don't fit.
        """
        self._check_inputs(X)
        self._check_observed(X, Y, noise)
        x = self.transform_inputs(X)
        if hasattr(self, "outcome_transform"):
            Y, _ = self.outcome_transform(Y, X=X)
        linearized = self.gp.linearized
        x, y = (t.to(device=linearized.device, dtype=linearized.dtype) for t in (x, Y))
        twin = self._twin()
        if noise is None and self._joins_data(x, y):
            twin._condition_on(copy.deepcopy(self.gp).add_data(x, y))
            return twin
        rows = x.shape[-2]
        blocks = noise_blocks(self.gp, True if noise is None else noise, self._outputs, rows)
        places = self._places(rows, self._outputs)
        added = Observations(x, places, y.flatten(-2), between_rows(blocks))
        if self._observations is not None:
            added = self._observations.followed_by(added, self._num_latent)
        twin._observations = added
        return twin

    def _condition_on(self, gp: LinearizedGP) -> None:
        training = gp.laplace.training
        inputs = training.inputs[0]
        if not isinstance(inputs, Tensor) or inputs.dim() != 2:
            raise ValueError(
                "gp: its network doesn't take rows of numbers, (n x d), as BoTorch gives them; "
                "wrap it in a module that makes its inputs of them"
            )
        self.__dict__["gp"] = gp  # no module of this one: BoTorch never trains it
        self._num_latent = training.num_outputs  # C
        self.likelihood = copy.deepcopy(gp.likelihood).requires_grad_(False)
        self._latent = LatentPosterior(gp)

    def _joint(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and covariance of all latent outputs, (*batch, q·C) and (*batch, q·C, q·C)."""
        if self._observations is None:
            return self._latent.joint(x)
        return self._observations.condition(self._latent.joint, x)

    def _chosen(self, indices: list[int] | None) -> tuple[int, ...]:
        """Numbers of latent outputs, from those of the model's."""
        if indices is None:
            return self._outputs
        count = len(self._outputs)
        if not indices or not all(-count <= i < count for i in indices):
            raise ValueError(
                f"output_indices: expected numbers of the model's {count} outputs, got {indices}"
            )
        return tuple(self._outputs[i] for i in indices)

    def _places(self, rows: int, outputs: tuple[int, ...]) -> Tensor:
        """Places of some outputs among the rows·C of all, data-major."""
        device = self.gp.linearized.device
        first = self._num_latent * torch.arange(rows, device=device)
        return (first.unsqueeze(-1) + torch.tensor(outputs, device=device)).flatten()

    def _joins_data(self, x: Tensor, y: Tensor) -> bool:
        """Whether the observations can be rows of the GP's data like any others."""
        plain = x.dim() == 2 and y.dim() == 2 and len(x) > 0
        plain = plain and not (x.requires_grad or y.requires_grad)
        own = self._observations is None and len(self._outputs) == self._num_latent
        in_order = self._outputs == tuple(range(self._num_latent))
        known = self.gp.likelihood.has_known
        return plain and own and in_order and self.gp.mean == "refit" and not known

    def _check_inputs(self, X: Tensor) -> None:
        if X.dim() < 2:
            raise ValueError(
                f"X: expected (batch_shape x q x d), got shape {tuple(X.shape)}; a single point is "
                "X.unsqueeze(0)"
            )

    def _check_observed(self, X: Tensor, Y: Tensor, noise: Tensor | None) -> None:
        likelihood = self.gp.likelihood
        if not likelihood.is_quadratic or isinstance(likelihood, Tempered):
            raise ValueError(
                f"condition_on_observations: the likelihood is {type(likelihood).__name__}; new "
                "observations are conditioned on with Gaussian noise only. Use gp.add_data(X, y)"
            )
        if Y.dim() < 2 or Y.shape[-2:] != (X.shape[-2], self.num_outputs):
            raise ValueError(
                f"Y: expected (batch_shape x {X.shape[-2]} x {self.num_outputs}), a value for each "
                f"point and output, got shape {tuple(Y.shape)}"
            )

    def _twin(self) -> Self:
        """Another model that shares everything with this one, until it is given something else."""
        twin = type(self).__new__(type(self))  # copy.copy would share Module's dictionaries
        twin.__dict__ = {**self.__dict__, "_modules": dict(self._modules)}
        return twin

    def _set_transformed_inputs(self) -> None:
        """Nothing: the GP's data are transformed already."""

    def _revert_to_original_inputs(self) -> None:
        """Nothing: the GP's data stay transformed."""


class SampledCovariance(PosteriorCovariance):
    """A dense PSD matrix S (*batch, n, n), of any rank, whose root has finite derivatives.

    The root of a singular matrix has none: it is that of S + ε I, with the least ε, from rounding
    upwards, for which S + ε I has a Cholesky factor.
    """

    def root_decomposition(self, method: str | None = None) -> LinearOperator:
        return RootLinearOperator(DenseLinearOperator(lower_root(self.to_dense())))


def _gaussian(mean: Tensor, covariance: Tensor, num_outputs: int) -> GPyTorchPosterior:
    """The normal of mean (*batch, q·m) and covariance, whose rows are data-major."""
    batch = torch.broadcast_shapes(mean.shape[:-1], covariance.shape[:-2])
    mean = mean.expand(*batch, -1)
    operator = SampledCovariance(covariance.expand(*batch, -1, -1))
    if num_outputs == 1:
        return GPyTorchPosterior(MultivariateNormal(mean, operator))
    rows = mean.unflatten(-1, (-1, num_outputs))
    return GPyTorchPosterior(MultitaskMultivariateNormal(rows, operator))


def _sampled(posterior: Posterior) -> Posterior:
    """A transform that is linear gives another operator: this one can be of any rank."""
    if type(posterior) is not GPyTorchPosterior:
        return posterior
    distribution = posterior.distribution
    covariance = distribution.covariance_matrix
    mean = distribution.mean
    if isinstance(distribution, MultitaskMultivariateNormal):
        return _gaussian(mean.flatten(-2), covariance, mean.shape[-1])
    return _gaussian(mean, covariance, 1)


def _standardize(mean: Tensor, scale: Tensor) -> Standardize:
    """(y - mean) / scale, (m,) each, as if learned."""
    made: Any = Standardize(len(scale))
    made.means, made.stdvs = mean.unsqueeze(0), scale.unsqueeze(0)
    made._stdvs_sq, made._is_trained = made.stdvs.square(), made._is_trained | True
    return made.eval()
