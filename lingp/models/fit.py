"""What `LinearizedGP.fit` makes: data, what they are conditioned by, and why that was chosen."""

from __future__ import annotations

from dataclasses import dataclass, replace

from lingp.inference import InferenceChoice, LinearizedLaplace, Mean, Sites
from lingp.inference.choice import Inference, choose_method
from lingp.inference.exact import as_method
from lingp.inference.mean_scale import MeanScale
from lingp.inference.origin import Origin
from lingp.models.fitting import FittedData
from lingp.priors import Prior
from lingp.runtime.memory import memory_for


@dataclass(frozen=True)
class Fit:
    """Data, posterior and choice, which belong together.

    Attributes
    ----------
    data
        What the user gave.
    laplace
        The posterior and the evidence, at hyperparameters that may change.
    choice
        The inference method's name and reason.
    """

    data: FittedData
    laplace: LinearizedLaplace
    choice: InferenceChoice

    @classmethod
    def of(
        cls,
        data: FittedData,
        prior: Prior,
        inference: Inference,
        mean: Mean,
        sites: Sites,
        mean_scale: MeanScale,
        memory_budget: int | None,
    ) -> Fit:
        """Choose inference for these data and start from nothing."""
        training, likelihood = data.training, data.likelihood
        held = training.factor_bytes if training.factors_kept else 0
        memory = memory_for(memory_budget, data.linearized.device, held)
        method, choice = choose_method(
            inference, training, prior, likelihood, memory, mean=mean, sites=sites
        )
        laplace = LinearizedLaplace(training, prior, likelihood, method, mean, sites, mean_scale)
        return cls(data, laplace, choice)

    def carried_over(self, origin: Origin) -> Fit | None:
        """The fit to the changed data with what the method keeps; None if it keeps nothing."""
        training = self.data.training
        method = as_method(self.laplace.method).carried_over(training, origin)
        if method is None:
            return None
        return replace(self, laplace=replace(self.laplace, training=training, method=method))
