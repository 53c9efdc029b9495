"""The neural tangent kernel as a GPyTorch kernel, and what goes with it."""

from lingp.kernels.exact_kernel import ExactKernel
from lingp.kernels.network_mean import NetworkMean
from lingp.kernels.ntkernel import NTKernel

__all__ = ["ExactKernel", "NTKernel", "NetworkMean"]
