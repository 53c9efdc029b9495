"""The mean function of a linearised network under its weight prior."""

from __future__ import annotations

from torch import Tensor

from lingp.kernels import NetworkMean, NTKernel


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

    def forward(self, x: Tensor) -> Tensor:
        outputs = super().forward(x)
        if self.active_dims is not None:
            x = x.index_select(-1, self.active_dims)
        self.prior.bind_to(self.network.linearized)  # others may have the same prior
        shift = (self.prior.mean - self.network.linearized.weights()).to(outputs)
        return outputs + self.network.factors(x).matmul(shift.unsqueeze(-1)).view(outputs.shape)
