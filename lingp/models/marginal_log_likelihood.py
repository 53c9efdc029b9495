"""The evidence as GPyTorch's loss: what training loops and BoTorch's fitting routines maximise."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from gpytorch.distributions import MultivariateNormal
from gpytorch.mlls import MarginalLogLikelihood
from torch import Tensor

from lingp.inference.tuning.hyperparameters import hyperprior
from lingp.likelihoods import Likelihood

if TYPE_CHECKING:
    from lingp.models.linearized_gp import LinearizedGP


class LaplaceMarginalLogLikelihood(MarginalLogLikelihood):
    """`LinearizedGP.log_marginal_likelihood` per observation, as a GPyTorch marginal likelihood.

    GPyTorch priors registered on hyperparameters count, as they do in
    `gpytorch.mlls.ExactMarginalLogLikelihood`.

    Parameters
    ----------
    likelihood : lingp.likelihoods.Likelihood
        That of the model.
    model : LinearizedGP
        A fitted one.

    Raises
    ------
    ValueError
        If `likelihood` is another one than the model's.

    Examples
    --------
    >>> net = torch.nn.Sequential(torch.nn.Linear(1, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
    >>> X = torch.linspace(-1, 1, 20).unsqueeze(1)
    >>> gp = lingp.LinearizedGP(net, mean="refit").fit(X, X.sin())
    >>> mll = LaplaceMarginalLogLikelihood(gp.likelihood, gp.train())
    >>> optimizer = torch.optim.Adam(gp.parameters(), lr=0.1)
    >>> for _ in range(5):
    ...     optimizer.zero_grad()
    ...     loss = -mll(gp(X), X.sin())
    ...     loss.backward()
    ...     _ = optimizer.step()
    >>> gp.eval()(X).mean.shape
    torch.Size([20])
    """

    def __init__(self, likelihood: Likelihood, model: LinearizedGP) -> None:
        super().__init__(likelihood, model)
        if likelihood is not model.likelihood:
            raise ValueError(
                "likelihood: is another object than model.likelihood, whose hyperparameters the "
                "model has; give that one"
            )

    def forward(self, output: MultivariateNormal, target: Tensor, *args: Any) -> Tensor:
        """The evidence and the log densities of hyperparameters, over N·C, 0-d.

        Parameters
        ----------
        output
            What the model gives in train mode at its training inputs.
        target
            The training targets, as they were fitted.
        args
            What GPyTorch passes on to its likelihoods; not used.

        Raises
        ------
        ValueError
            If output or target aren't those of the training data.
        """
        known = self.model.train_targets
        if target.numel() != known.numel() or not _equal(target.reshape(known.shape), known):
            raise ValueError(
                f"target: got shape {tuple(target.shape)}, and not the {len(known)} training "
                "targets that the model was fitted to; give model.train_targets, or fit to others"
            )
        size = output.event_shape.numel()
        training = self.model.laplace.training
        if size != training.outputs.numel():
            raise ValueError(
                f"output: is of {size} values of f, but the training data have "
                f"{training.outputs.numel()}; give model(*model.train_inputs) in train mode"
            )
        evidence = self.model.log_marginal_likelihood()
        return (evidence + hyperprior((self.model,))()) / size


def _equal(target: Tensor, known: Tensor) -> bool:
    """Whether these are the same numbers, in any precision; NaN is a missing target."""
    here = target.detach().to(known.device, known.dtype)
    return bool(torch.allclose(here, known, equal_nan=True))
