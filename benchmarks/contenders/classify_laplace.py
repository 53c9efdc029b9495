"""Classification by laplace-torch: fit, tune the prior precision, predict.

What is called, for each structure:

    la = Laplace(net, "classification", subset_of_weights="all", hessian_structure=...)
    la.fit(loader)
    la.optimize_prior_precision()                        # default: 100 steps of Adam, evidence
    la(x_test)                                           # its default link, probit
    la(x_test, link_approx="mc", n_samples=1000)         # its other links
    la(x_test, link_approx="bridge")

and with the tuning "grid", which it recommends for "gp":

    la.optimize_prior_precision(method="gridsearch", val_loader=..., grid_size=21, loss=...)

(the loss is negative log likelihood; its default is the same, but in 0.3 it is never reset from
one grid value to the next, so that every value is judged by the mean over all values before it.)

The structure "gp" keeps all training rows (n_subset = N). Where it would need an N C x N C matrix
of more than 6000 rows, outputs are taken as independent (its option `independent_outputs`).

Called as they are, "full" and "gp" would need hours of processor time: every step of the tuning
factorises a P x P or N C x N C matrix, and every test row of "gp" solves with a copy of it. The
subclasses below replace log determinants and solves by the same quantities from one factorisation.
``as_shipped`` in the case leaves the library as it is: on small networks probabilities and
precisions then differ by less than 1e-12.
"""

from __future__ import annotations

import contextlib
import warnings
from typing import Any

import numpy as np
import torch
from laplace import DiagLaplace, FullLaplace, FunctionalLaplace, KronLaplace
from laplace.curvature import BackPackGGN
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

from contenders.torch_tools import package_versions, set_up

_LARGEST_KERNEL = 6000
_GRID = 21
_OTHER_LINKS: dict[str, dict[str, int]] = {"mc": {"n_samples": 1000}, "bridge": {}}


def versions() -> dict[str, str]:
    packages = ("torch", "laplace-torch", "curvlinops-for-pytorch", "backpack-for-pytorch")
    return package_versions(*packages)


def _loss(probabilities: Tensor, y: Tensor) -> Tensor:
    return torch.nn.functional.nll_loss(probabilities.log(), y)


class OneFactorisationFull(FullLaplace):
    """The same log determinant and functional variance, for a scalar prior precision."""

    _key = ("all", "full of the benchmark")
    _eigenvalues: Tensor | None = None
    _factor: tuple[float, Tensor] | None = None

    @property
    def log_det_posterior_precision(self) -> Tensor:
        if self._eigenvalues is None:
            self._eigenvalues = torch.linalg.eigvalsh(self.H)
        return (self._H_factor * self._eigenvalues + self.prior_precision).log().sum()

    def functional_variance(self, Js: Tensor) -> Tensor:
        precision = self.prior_precision.item()
        if self._factor is None or self._factor[0] != precision:
            self._factor = (precision, torch.linalg.cholesky(self.posterior_precision))
        half = torch.linalg.solve_triangular(self._factor[1], Js.flatten(0, 1).T, upper=False)
        half = half.T.unflatten(0, Js.shape[:2])  # (n, C, P)
        return half @ half.mT


class OneFactorisationGP(FunctionalLaplace):
    """The same evidence and functional variance; kernels to the training rows are kept."""

    _key = ("all", "gp of the benchmark")
    _spectra: tuple[list[Tensor], list[tuple[Tensor, Tensor]]] | None = None

    def _blocks(self) -> list[tuple[Tensor, Tensor, Tensor]]:
        """Kernel, curvature and mean of the scatter term, for every independent block."""
        if not self.independent_outputs:
            return [(self.K_MM, self.L, self.mu.reshape(-1))]
        return list(zip(self.K_MM, self.L, self.mu.T, strict=True))

    def _decompositions(self) -> tuple[list[Tensor], list[tuple[Tensor, Tensor]]]:
        if self._spectra is None:
            whitened, scatters = [], []
            for kernel, curvature, mean in self._blocks():
                root = (self._H_factor * curvature).sqrt()
                whitened.append(torch.linalg.eigvalsh(root[:, None] * kernel * root))
                values, vectors = torch.linalg.eigh(kernel)
                scatters.append((values, vectors.T @ mean))
            self._spectra = whitened, scatters
        return self._spectra

    @property
    def log_det_ratio(self) -> Tensor:
        scale = self.gp_kernel_prior_variance
        return sum((1 + scale * values).log().sum() for values in self._decompositions()[0])

    @property
    def scatter(self) -> Tensor:
        scale, jitter = self.gp_kernel_prior_variance, 1e-5
        parts = self._decompositions()[1]
        return sum((mean.square() / (scale * values + jitter)).sum() for values, mean in parts)

    def fit(self, train_loader: DataLoader, progress_bar: bool = False) -> None:
        self._kept: dict[tuple[int, ...], Tensor] = {}
        super().fit(train_loader, progress_bar)

    def _glm_predictive_distribution(self, X: Tensor, joint: bool = False) -> Any:
        self._for = (X.data_ptr(), len(X))
        self._batch = 0
        return super()._glm_predictive_distribution(X, joint)

    def _kernel_batch_star(self, jacobians: Tensor, batch: Tensor) -> Tensor:
        key = (*self._for, self._batch)
        self._batch += 1
        if key not in self._kept:
            self._kept[key] = super()._kernel_batch_star(jacobians, batch)
        return self._kept[key]

    def _build_K_star_M(self, K_M_star: list[Tensor], joint: bool = False) -> Tensor:
        rows = torch.cat(K_M_star, dim=1)
        if self.independent_outputs:  # (n, N, C)
            halves = [
                torch.linalg.solve_triangular(factor, rows[:, :, c].T, upper=False)
                for c, factor in enumerate(self.Sigma_inv)
            ]
            return torch.stack([half.square().sum(0) for half in halves], dim=-1)
        num, outputs = rows.shape[0], rows.shape[-1]
        columns = rows.reshape(num, -1, outputs).movedim(0, 1).flatten(1)  # (N C, n C)
        half = torch.linalg.solve_triangular(self.Sigma_inv, columns, upper=False)
        half = half.unflatten(1, (num, outputs)).movedim(1, 0)  # (n, N C, C)
        return half.mT @ half


class Contender:
    """Class probabilities (n x C) of the test rows by three links, and the tuned precision."""

    def __init__(self, case: dict[str, Any], data: dict[str, Any]) -> None:
        self._network, x = set_up(case, data)
        torch.set_default_dtype(x.dtype)
        self._structure, self._tuning = case["structure"], case["tuning"]
        self._shipped = case.get("as_shipped", False)
        self._rows = case["batch"]
        self._train = TensorDataset(x, torch.from_numpy(data["y"]))
        self._valid = TensorDataset(
            torch.from_numpy(data["valid_x"]).to(x.dtype), torch.from_numpy(data["valid_y"])
        )
        self._test = torch.from_numpy(data["test_x"]).to(x.dtype)
        self._outputs = case["architecture"]["sizes"][-1]

    def _posterior(self) -> tuple[Any, int]:
        """The posterior that is not fitted yet, and rows per batch of its loader."""
        num_data, network = len(self._train), self._network
        # Jacobians by torch.func of a whole batch need (batch)² memory: small batches there.
        if self._structure == "kron":  # factors of a whole batch, not averages over batches
            return KronLaplace(network, "classification"), num_data
        if self._structure == "diag":
            return DiagLaplace(network, "classification"), self._rows
        if self._structure == "full":
            kind = FullLaplace if self._shipped else OneFactorisationFull
            return kind(network, "classification", backend=BackPackGGN), self._rows
        kind = FunctionalLaplace if self._shipped else OneFactorisationGP
        independent = num_data * self._outputs > _LARGEST_KERNEL
        return (
            kind(network, "classification", num_data, independent_outputs=independent),
            num_data,
        )

    def work(self) -> dict[str, Tensor]:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            posterior, rows = self._posterior()
            posterior.fit(DataLoader(self._train, rows))
            if self._tuning == "grid":
                # A list of one batch: the same tensors every time, so that kernels are kept.
                options = {"method": "gridsearch", "val_loader": [self._valid[:]], "loss": _loss}
                posterior.optimize_prior_precision(**options, grid_size=_GRID)
            else:
                posterior.optimize_prior_precision()
            found = {"probit": self._probabilities(posterior)}
            for link, options in _OTHER_LINKS.items():
                # a covariance that is not positive definite stops the draws
                with contextlib.suppress(torch.linalg.LinAlgError):
                    found[link] = self._probabilities(posterior, link_approx=link, **options)
        return {**found, "precision": posterior.prior_precision.detach().mean()}

    def _probabilities(self, posterior: Any, **options: Any) -> Tensor:
        torch.manual_seed(0)
        # "gp" makes Jacobians of all training rows for every part it predicts
        parts = [self._test] if self._structure == "gp" else self._test.split(self._rows)
        return torch.cat([posterior(part, **options).detach() for part in parts])

    def arrays(self, outcome: dict[str, Tensor]) -> dict[str, np.ndarray]:
        return {name: value.numpy() for name, value in outcome.items()}

    def kept(self, outcome: dict[str, Tensor]) -> dict[str, int]:
        return {}
