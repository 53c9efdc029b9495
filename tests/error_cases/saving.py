"""Saving: what makes each error of the page appear."""

import lingp
from error_cases.shared import fit, folder, mlp, rows, says
from lingp import likelihoods


@says("net: … is of a network built differently:")
def _():
    with folder() as path:
        fit().save(path)
        lingp.LinearizedGP.load(path, mlp(hidden=7))


@says("path: … can't be read: it is damaged or cut off, or isn't a file that")
def _():
    with folder() as path:
        with open(path, "wb") as file:
            file.write(b"nothing of the kind")
        lingp.LinearizedGP.load(path, mlp())


@says(
    "add_data: takes the training data, and this LinearizedGP was loaded from a file without them"
)
def _():
    with folder() as path:
        fit(inference="weight_space").save(path)
        lingp.LinearizedGP.load(path, mlp()).add_data(*rows())


@says("likelihood: the file has AutodiffLikelihood")
def _():
    own = likelihoods.AutodiffLikelihood(lambda y, f: -(y - f).square().sum())
    with folder() as path:
        fit(likelihood=own, inference="weight_space").save(path)
        lingp.LinearizedGP.load(path, mlp())
