"""gpytorch's own kernel test case class, in full, on NTKernel."""

import unittest

import torch
from gpytorch.test.base_kernel_test_case import BaseKernelTestCase
from torch import nn

from lingp.gpytorch_models import NTKernel


class PooledNetwork(nn.Module):
    """Takes inputs of any length, as the case class gives: each entry is embedded, then pooled."""

    def __init__(self, outputs=1):
        super().__init__()
        self.embed, self.head = nn.Linear(1, 6), nn.Linear(6, outputs)

    def forward(self, x):
        return self.head(torch.tanh(self.embed(x.unsqueeze(-1))).mean(-2))


class TestNTKernel(BaseKernelTestCase, unittest.TestCase):
    outputs = 1

    def create_kernel_no_ard(self, **kwargs):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            net = PooledNetwork(self.outputs)
        return NTKernel.from_model(net, **kwargs)


class TestNTKernelOfTwoOutputs(TestNTKernel):
    outputs = 2


del BaseKernelTestCase
