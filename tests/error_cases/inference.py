"""Inference: what makes each error of the page appear."""

import gpytorch
import torch

import lingp
from error_cases.shared import fit, mlp, rows, says


@says("inference: got the class Sparse; give an object of it")
def _():
    fit(inference=lingp.Sparse)


@says("weight space inference needs more than the 100 kB of memory there is (N·C = 20·1, P = 251)")
def _():
    fit(mlp(hidden=50), inference="weight_space", memory_budget=100_000)


@says("num_inducing: got 50, more than the 20 inputs of the training data")
def _():
    fit(inference=lingp.Sparse(50))


@says(
    "the whitened Jacobian has NaN or infinite entries: a hyperparameter (prior precision, noise)"
)
def _():
    fit(prior=1e-320).predict(rows()[0])


@says("I + Φ Φᵀ (size 20) has largest eigenvalue …: Cholesky in torch.float32 would lose …")
def _():
    fit(prior=1e-3, dtype=torch.float32, inference="function_space").predict(rows()[0])


@says("iterative inference: 20 of 20 right-hand sides missed the tolerance …")
def _():
    options = lingp.Iterative(0, max_iterations=1)
    fit(prior=1e-2, inference=options).predict(rows()[0])


@says("2 inducing points leave … of the candidates' prior variance, above the tolerance")
def _():
    fit(inference=lingp.Sparse(2, tolerance=1e-3)).predict(rows()[0])


@says("inference: Blocks(...) estimates the evidence and gives no")
def _():
    fit(inference=lingp.inference.Blocks(5)).predict(rows()[0])


@says(
    "a AdditiveKernel with an NTKernel in it has 20 rows: GPyTorch solves it by conjugate gradients"
)
def _():
    kernel = gpytorch.kernels.RBFKernel() + lingp.NTKernel.from_model(mlp())
    with gpytorch.settings.max_cholesky_size(10):
        kernel(rows()[0]).to_dense()
