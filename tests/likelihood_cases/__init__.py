"""The shared table of likelihoods: every test of a property of all likelihoods runs over it."""

from likelihood_cases.autodiff import CASES as AUTODIFF
from likelihood_cases.case import LikelihoodCase
from likelihood_cases.classification import CASES as CLASSIFICATION
from likelihood_cases.continuous import CASES as CONTINUOUS
from likelihood_cases.counts import CASES as COUNTS
from likelihood_cases.gaussian import CASES as GAUSSIAN

CASES: list[LikelihoodCase] = [*GAUSSIAN, *COUNTS, *AUTODIFF, *CLASSIFICATION, *CONTINUOUS]
NAMES = [case.name for case in CASES]

__all__ = ["CASES", "NAMES", "LikelihoodCase"]
