"""Networks compared by their evidence, and chosen without validation data."""

from lingp.comparison.by_evidence import compare_by_evidence
from lingp.comparison.result import Candidate, Comparison, RankCorrelation, Run

__all__ = ["Candidate", "Comparison", "RankCorrelation", "Run", "compare_by_evidence"]
