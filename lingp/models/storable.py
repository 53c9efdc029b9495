"""A conditioned network that can be written to a file and read again."""

from __future__ import annotations

import os
from typing import Any, Literal

from torch import nn
from typing_extensions import Self

from lingp.likelihoods import Likelihood
from lingp.models.conditioned import ConditionedNetwork
from lingp.models.saved import load, save
from lingp.priors import Prior
from lingp.saving import SavedFile


class StorableNetwork(ConditionedNetwork):
    """The part of `LinearizedGP` that saves and loads; see there."""

    def save(
        self, path: str | os.PathLike[str], *, include_data: Literal["auto"] | bool = "auto"
    ) -> SavedFile:
        """Write this GP to one file, from which `load` gives the same predictions.

        On the same machine, with as many threads, to the last bit. The file has the network's
        weights, prior, likelihood, options and the posterior; tensors, numbers, strings, lists and
        dicts, which `torch.load(weights_only=True)` reads. It replaces an older one in one step.

        Parameters
        ----------
        path
            Of the file; its folder exists.
        include_data
            Whether the training data are in the file. "auto": where predictions take them, in
            function space and for iterative inference. Without them, a loaded GP predicts, draws
            and knows its evidence; what has to go through the data again (other hyperparameters,
            `add_data`, `leave_one_out`) raises an error. Sparse inference keeps what the network's
            layers make of its inducing inputs, which are training inputs.

        Returns
        -------
        What was written, and what of the training data is in it; prints as one line.
        """
        return save(self, path, include_data)

    @classmethod
    def load(
        cls,
        path: str | os.PathLike[str],
        net: nn.Module,
        *,
        prior: Prior | None = None,
        likelihood: Likelihood | None = None,
        map_location: Any = None,
    ) -> Self:
        """A GP from a file that `save` wrote.

        Parameters
        ----------
        path
            Of the file.
        net
            A network of the same architecture. It is copied and its copy gets the weights in the
            file: its own weights don't matter, and it stays as it is.
        prior, likelihood
            Objects as they were made before, which are copied and get the hyperparameters in the
            file; only for what the file can't describe: a class of your own that isn't
            `lingp.runtime.described.described`, a likelihood made of functions, GPyTorch priors on
            hyperparameters.
        map_location
            As `torch.load` takes it: where tensors go, such as "cpu"; by default where they were.

        Raises
        ------
        lingp.saving.SavedFileError
            For a file that is damaged, of a newer lingp, of another network, or something else.
        """
        return load(cls, path, net, prior=prior, likelihood=likelihood, map_location=map_location)
