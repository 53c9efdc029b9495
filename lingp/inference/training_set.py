"""The training data as inference sees it: the Jacobian with targets and weights."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from lingp.linearization import Factors, LinearizedNetwork
from lingp.linearization.inputs import Inputs
from lingp.operators import gram
from lingp.operators.batches import cut_batches, inputs_of
from lingp.operators.training_jacobian import DENSE_CHUNK_BYTES, TrainingJacobian
from lingp.runtime.progress import track
from lingp.runtime.shards import Shards


class TrainingSet(TrainingJacobian):
    """Outputs f(x_n; θ*), targets, weights and the Jacobian J (N·C x P), in batches.

    Parameters
    ----------
    linearized, inputs, outputs, factors, options
        As `TrainingJacobian` takes them.
    targets
        Of all batches, as the likelihood's `check_targets` gives them, first axis N.
    weights
        How often each datum counts, (N,), finite and not negative; None: once each.
    """

    def __init__(
        self,
        linearized: LinearizedNetwork,
        inputs: list[Inputs],
        outputs: Tensor,
        targets: Tensor,
        factors: list[Factors] | None,
        *,
        weights: Tensor | None = None,
        **options: Any,
    ) -> None:
        super().__init__(linearized, inputs, outputs, factors, **options)
        self.targets = targets
        self.weights = None if weights is None else _checked_weights(weights, outputs)

    @classmethod
    def collect(
        cls,
        linearized: LinearizedNetwork,
        batches: Iterable[tuple[Inputs, Tensor, Tensor | None]],
        *,
        keep_bytes: int,
        chunk_bytes: int = DENSE_CHUNK_BYTES,
        progress: bool = True,
        shards: Shards | None = None,
    ) -> TrainingSet:
        """Run the network over batches of (inputs, checked targets, weights or None).

        Factors are kept while they fit in `keep_bytes`. Batches whose factors would take more than
        `chunk_bytes` are cut. Where an error stops one of several processes, it stops all.
        """
        shards = shards or Shards.single()
        show = progress and shards.rank == 0
        own = shards.attempt(lambda: cls._own(linearized, batches, keep_bytes, chunk_bytes, show))
        own.shards = shards.with_rows(own.num_data)
        return own

    @classmethod
    def _own(
        cls,
        linearized: LinearizedNetwork,
        batches: Iterable[tuple[Inputs, Tensor, Tensor | None]],
        keep_bytes: int,
        chunk_bytes: int,
        progress: bool,
    ) -> TrainingSet:
        """The data of this process, for itself."""
        inputs, outputs, targets, weights = [], [], [], []
        factors: list[Factors] = []
        kept, rows, held = True, 0, 0
        pieces = cut_batches(linearized, batches, chunk_bytes)
        for x, y, w in track(pieces, "linearising", show=progress):
            if kept:
                f, batch_factors = linearized.factors(x)
                factors.append(batch_factors)
                rows, held = rows + len(y), held + batch_factors.nbytes
                # stacking them copies once, so at most half of the memory may be held
                if 2 * held > keep_bytes:
                    kept, factors = False, []
            else:
                f = linearized(x).detach()
            inputs.append(x)
            outputs.append(f)
            targets.append(y)
            weights.append(w)
        stacked = torch.cat(outputs)
        return cls(
            linearized,
            inputs,
            stacked,
            torch.cat(targets),
            factors if kept else None,
            weights=_cat_weights(weights, [len(f) for f in outputs], stacked),
            factor_bytes=held * len(stacked) // rows,
            keep_bytes=keep_bytes,
            chunk_bytes=chunk_bytes,
            progress=progress,
        )

    def extended(self, batches: Iterable[tuple[Inputs, Tensor, Tensor | None]]) -> TrainingSet:
        """These data and some more; nothing is computed again for the old ones.

        Parameters
        ----------
        batches
            As `collect` takes them. Factors of the new rows are kept if those of the old ones are.
        """
        new = TrainingSet.collect(
            self.linearized,
            batches,
            keep_bytes=self.keep_bytes - self.factor_bytes if self.factors_kept else 0,
            chunk_bytes=self.chunk_bytes,
            progress=self.progress,
            shards=self.shards,
        )
        kept = None
        if self._factors is not None and new._factors is not None:
            kept = [self._factors, new._factors]
        outputs = torch.cat([self.outputs, new.outputs])
        joined = TrainingSet(
            self.linearized,
            [*self.inputs, *new.inputs],
            outputs,
            torch.cat([self.targets, new.targets]),
            kept,
            weights=_cat_weights(
                [self.weights, new.weights], [self.num_data, new.num_data], outputs
            ),
            factor_bytes=self.factor_bytes + new.factor_bytes,
            keep_bytes=self.keep_bytes,
            chunk_bytes=self.chunk_bytes,
            progress=self.progress,
            shards=self.shards,
        )
        with torch.no_grad():
            if self._unit_gram is not None and kept is not None:
                cross = gram(new.factors(), self.factors())
                upper = torch.cat([self._unit_gram, cross.mT], 1)
                joined._unit_gram = torch.cat([upper, torch.cat([cross, new.unit_gram()], 1)])
            if self._unit_ggn is not None:
                joined._unit_ggn = self._unit_ggn + new.unit_ggn()
        return joined

    def subset(self, index: Tensor, shards: Shards | None = None) -> TrainingSet:
        """Some of the data of this process; nothing is computed again, and J Jᵀ is kept.

        Parameters
        ----------
        index
            Row numbers, ascending, without repetition, (n,).
        shards
            How these rows are spread over processes; by default this one has them for itself.
        """
        index = index.to(self.outputs.device)
        chosen = TrainingSet(
            self.linearized,
            list(inputs_of(self.inputs, index.cpu())),
            self.outputs[index],
            self.targets[index],
            None if self._factors is None else [self._factors.rows(index)],
            weights=None if self.weights is None else self.weights[index],
            factor_bytes=self.factor_bytes * len(index) // self.num_data,
            keep_bytes=self.keep_bytes,
            chunk_bytes=self.chunk_bytes,
            progress=self.progress,
            shards=shards,
        )
        if self._unit_gram is not None:
            shape = (self.num_data, self.num_outputs) * 2
            blocks = self._unit_gram.view(shape)[index][:, :, index]
            chosen._unit_gram = blocks.reshape(chosen.outputs.numel(), -1)
        return chosen


def _checked_weights(weights: Tensor, outputs: Tensor) -> Tensor:
    """Weights in the dtype and on the device of the outputs."""
    if weights.shape != outputs.shape[:1]:
        raise ValueError(
            f"weights: expected one per datum, ({len(outputs)},), got {tuple(weights.shape)}"
        )
    if not bool((torch.isfinite(weights) & (weights >= 0)).all()):
        raise ValueError(
            "weights: expected finite numbers >= 0, got some that are negative, NaN or infinite"
        )
    return weights.to(outputs)


def _cat_weights(
    parts: Sequence[Tensor | None], sizes: Sequence[int], outputs: Tensor
) -> Tensor | None:
    """The weights of several batches, 1 where a batch has none; None if no batch has any."""
    if all(part is None for part in parts):
        return None
    return torch.cat(
        [
            outputs.new_ones(size) if part is None else part.to(outputs)
            for part, size in zip(parts, sizes, strict=True)
        ]
    )
