"""Products with the kernel, w -> Rᵀ K R w, by the way that memory allows and that is cheapest.

    dense         K = J Σ0 Jᵀ written down, 2 (N·C)² flops per column
    factors       Rᵀ J (Σ0 (Jᵀ R w)) through the layers' factors, about 4 N·P per column
    recomputed    the same, factors made anew in each of the two passes, batch by batch

How many products are to come nobody knows. So the columns that are announced and those so far are
counted, and K is formed once it pays for them: the work is never more than about twice what the
better way, known beforehand, would have taken (see `lingp.operators.products`).
"""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor

from lingp.inference.training_set import TrainingSet
from lingp.likelihoods import CurvatureRoot
from lingp.operators.products import gram_flops, product_flops
from lingp.runtime.memory import format_bytes
from lingp.runtime.plain import to_plain

Way = Literal["dense", "factors", "recomputed"]


class KernelProduct:
    """w -> Rᵀ K R w at the training data, for any variances and curvature.

    Parameters
    ----------
    training
        The training data.
    memory
        Bytes that a dense kernel may take.
    columnwise
        Whether the prior's variances vary along both axes of weight matrices.

    Attributes
    ----------
    way
        The way in which the next product is computed.
    """

    def __init__(self, training: TrainingSet, memory: float, columnwise: bool = False) -> None:
        self.training = training
        self.memory = memory
        self.columnwise = columnwise
        size = training.outputs.numel()
        self.dense_bytes = size**2 * training.outputs.element_size()
        if not training.factors_kept:  # the whole kernel takes the factors of all rows
            self.dense_bytes += 2 * training.factor_bytes
        one = training.factors_at(torch.zeros(1, dtype=torch.long))
        self._forming = gram_flops(one, None, columnwise) * training.num_data**2
        self._by_factors = product_flops(one, one, 1) * training.num_data
        self._by_kernel = 2.0 * size**2
        self._columns = 0.0
        self._variances: Tensor | None = None  # of the kernel written down; ones: J Jᵀ

    def state(self) -> dict[str, Any]:
        """What a file keeps of it."""
        return {
            "memory": self.memory,
            "columnwise": self.columnwise,
            "columns": self._columns,
            "dense": to_plain(self._variances),
        }

    @classmethod
    def restored(cls, state: dict[str, Any], training: TrainingSet) -> KernelProduct:
        """The product that had this `state`."""
        product = cls(training, state["memory"], state["columnwise"])
        product._columns, product._variances = state["columns"], state["dense"]
        return product

    @property
    def way(self) -> Way:
        if self._variances is not None:
            return "dense"
        return "factors" if self.training.factors_kept else "recomputed"

    @property
    def reason(self) -> str:
        """One line: the way, and the numbers that decide."""
        what = {
            "dense": "dense kernel",
            "factors": "products through kept factors",
            "recomputed": "products through factors that are recomputed",
        }[self.way]
        needs = f"a dense kernel takes {format_bytes(self.dense_bytes)}"
        if self.dense_bytes > self.memory:
            why = f"{needs} of {format_bytes(self.memory)}"
        else:
            why = f"{needs} and pays from {self.break_even:.3g} columns on"
        return f"{what}: {why}, {self._columns:.3g} columns so far"

    @property
    def break_even(self) -> float:
        """Columns for which forming the kernel pays; infinite if it never does."""
        saved = self._by_factors - self._by_kernel
        return self._forming / saved if saved > 0 else float("inf")

    def expect(self, num_columns: float, variances: Tensor, isotropic: bool) -> None:
        """Form the kernel now, if so many more columns will pay for it."""
        self._forget_others(variances, isotropic)
        if self.way != "dense" and self.pays(num_columns):
            self._variances = _key(variances, isotropic)

    def pays(self, num_columns: float) -> bool:
        """Whether the kernel fits, and is written down by the time of so many more columns."""
        fits = self.dense_bytes <= self.memory and self.training.shards.alone
        return fits and self._columns + num_columns >= self.break_even

    @torch.no_grad()
    def __call__(
        self, w: Tensor, root: CurvatureRoot, variances: Tensor, isotropic: bool
    ) -> Tensor:
        """Rᵀ K R w: (N·K x S) -> (N·K x S).

        Parameters
        ----------
        w
            Columns.
        root
            R.
        variances
            The variance of each parameter tensor (L,) or weight (P,).
        isotropic
            Whether they are all the same.
        """
        training = self.training
        self.expect(w.shape[1], variances, isotropic)
        self._columns += w.shape[1]
        u = root.apply(w.unflatten(0, (training.num_data, root.rank)))  # (N, C, S)
        if self.way == "dense":
            kernel = training.unit_gram() if isotropic else training.kernel(variances)
            v = (kernel @ u.flatten(0, 1)).view_as(u)
            v = variances[0] * v if isotropic else v
        else:
            pulled = training.t_matmul(u)  # (P, S)
            v = training.matmul(training.per_weight(variances).unsqueeze(-1) * pulled)
        return root.t_apply(v).flatten(0, 1)

    def _forget_others(self, variances: Tensor, isotropic: bool) -> None:
        """A kernel for other variances is no use."""
        if self._variances is not None and not torch.equal(
            self._variances, _key(variances, isotropic)
        ):
            self._variances, self._columns = None, 0.0


def _key(variances: Tensor, isotropic: bool) -> Tensor:
    """The variances that the kernel is written down for: of an isotropic prior, J Jᵀ serves all."""
    variances = variances.detach()
    return torch.ones_like(variances) if isotropic else variances
