"""The neural tangent kernel as a GPyTorch kernel, and what goes with it."""

from lingp.kernels.composite import ExactAdditiveKernel, ExactProductKernel
from lingp.kernels.network_mean import NetworkMean
from lingp.kernels.ntkernel import NTKernel

__all__ = ["ExactAdditiveKernel", "ExactProductKernel", "NTKernel", "NetworkMean"]
