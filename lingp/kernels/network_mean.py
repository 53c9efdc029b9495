"""The network itself as a GPyTorch mean function."""

from __future__ import annotations

from gpytorch.means import Mean
from torch import Tensor

from lingp.kernels.ntkernel import NTKernel


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
        if self.active_dims is not None:
            x = x.index_select(-1, self.active_dims)
        outputs = self.network.outputs(x)
        return outputs.squeeze(-1) if outputs.shape[-1] == 1 else outputs
