"""How the mean of class labels is scaled: what the user asked for, and what validation data say."""

from __future__ import annotations

from dataclasses import dataclass

from typing_extensions import Self

from lingp.inference.choice import MeanScaleOption, check_mean_scale
from lingp.inference.mean_scale import Matched, MeanScale
from lingp.likelihoods import Likelihood


@dataclass(frozen=True)
class ScaleRule:
    """A number, "matched" or "auto", and a factor of the matched scale.

    Attributes
    ----------
    option
        What was asked for.
    factor
        The factor that validation data chose; None where they weren't asked.
    """

    option: MeanScaleOption = "auto"
    factor: float | None = None

    @classmethod
    def of(cls, value: MeanScaleOption | Matched) -> Self:
        """The rule that a user gives, or that of another GP."""
        if isinstance(value, Matched):
            return cls("matched", value.factor)
        return cls(check_mean_scale(value))

    @property
    def is_number(self) -> bool:
        """Whether the scale is given, so that nothing looks for it."""
        return not isinstance(self.option, str)

    def for_likelihood(self, likelihood: Likelihood) -> MeanScale:
        """The number or rule for a likelihood.

        Raises
        ------
        ValueError
            If a scale was asked for and targets aren't class labels.
        """
        if not likelihood.saturates:
            if self.option in ("auto", 1.0):
                return 1.0
            raise ValueError(
                f"mean_scale: got {self.option!r}, but {type(likelihood).__name__} is not of "
                'class labels, for which it is made; leave it at "auto"'
            )
        return Matched(self.factor or 1.0) if isinstance(self.option, str) else self.option


def in_words(scale: MeanScale) -> str:
    """A number, or the rule."""
    if not isinstance(scale, Matched):
        return f"{scale:.3g}"
    return "matched" if scale.factor == 1 else f"matched x {scale.factor:.3g}"
