"""The network itself as a GPyTorch mean function, at its trained weights or at the prior's mean."""

from __future__ import annotations

from gpytorch.means import Mean
from torch import Tensor

from lingp.gpytorch_models.ntkernel import NTKernel


class NetworkMean(Mean):
    """m(x) = f(x; θ*): the outputs of a kernel's network, (..., N), or (..., N, C) if C > 1.

    With it and the kernel the GP is the linearised network around its trained weights. The network
    is shared with the kernel, not copied; it is frozen in both.

    Parameters
    ----------
    kernel : NTKernel
        Whose network, input shape and active dimensions are used.

    Examples
    --------
    >>> class LinearizedModel(gpytorch.models.ExactGP):
    ...     def __init__(self, x, y, likelihood, net):
    ...         super().__init__(x, y, likelihood)
    ...         self.covar_module = NTKernel.from_model(net)
    ...         self.mean_module = NetworkMean(self.covar_module)
    ...     def forward(self, x):
    ...         mean, covar = self.mean_module(x), self.covar_module(x)
    ...         return gpytorch.distributions.MultivariateNormal(mean, covar)
    """

    def __init__(self, kernel: NTKernel) -> None:
        super().__init__()
        self.network = kernel.network
        self.register_buffer("active_dims", kernel.active_dims, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        outputs = self._values(x if self.active_dims is None else x[..., self.active_dims])
        return outputs.squeeze(-1) if outputs.shape[-1] == 1 else outputs

    def _values(self, x: Tensor) -> Tensor:
        """m at what the network sees of the inputs, (..., N, C)."""
        return self.network.outputs(x)


class PriorMean(NetworkMean):
    """m(x) = f_lin(x; μ0) = f(x; θ*) + J(x)(μ0 − θ*), (..., N), or (..., N, C) if C > 1.

    With it and the kernel the GP is that of `LinearizedGP`: weights θ ~ N(μ0, Σ0), the kernel's
    prior. Under `NetworkMean` they are N(θ*, Σ0), around the trained weights.

    Parameters
    ----------
    kernel : NTKernel
        Whose network, prior, input shape and active dimensions are used.
    """

    def __init__(self, kernel: NTKernel) -> None:
        super().__init__(kernel)
        self.prior = kernel.prior

    def _values(self, x: Tensor) -> Tensor:
        outputs = super()._values(x)
        self.prior.bind_to(self.network.linearized)  # others may have the same prior
        shift = (self.prior.mean - self.network.linearized.weights()).to(outputs)
        return outputs + self.network.factors(x).matmul(shift.unsqueeze(-1)).view(outputs.shape)
