"""linear_operator's own test case classes, in full, on our operators.

The NTK and GGN cases say `should_call_cg = False` and so on: the classes' own switch for operators
that are factorised at every size. The classes then check that CG and Lanczos are never called.
"""

import unittest

import torch
from linear_operator.operators import DiagLinearOperator
from linear_operator.test.linear_operator_test_case import (
    LinearOperatorTestCase,
    RectangularLinearOperatorTestCase,
)
from operator_cases import make_factors, make_root, make_tall_factors

from lingp.operators.ggn import GGNLinearOperator
from lingp.operators.jacobian import JacobianLinearOperator
from lingp.operators.ntk import NTKLinearOperator

VARIANCES = torch.tensor([0.8, 1.3, 0.6, 1.7])


def jacobian_of(operator):
    """The dense Jacobian of an operator's factors, with its graph."""
    return operator.factors.jacobian().flatten(0, 1)


def spread(operator):
    """The variance of each weight, from one for each parameter tensor."""
    sizes = [s.stop - s.start for s in operator.left.factors.slices]
    return operator.variances.repeat_interleave(torch.tensor(sizes))


class CholeskyAtEverySize(LinearOperatorTestCase):
    seed = 0
    should_test_sample = True
    should_call_cg = False
    should_call_lanczos = False
    should_call_lanczos_diagonalization = False


class TestSymmetricNTK(CholeskyAtEverySize, unittest.TestCase):
    def create_linear_op(self):
        return NTKLinearOperator.from_factors(make_factors(3, 2), None, VARIANCES.clone())

    def evaluate_linear_op(self, linear_op):
        jacobian = jacobian_of(linear_op.left)
        return jacobian * spread(linear_op) @ jacobian.mT


class TestSymmetricNTKOneOutput(TestSymmetricNTK):
    def create_linear_op(self):
        return NTKLinearOperator.from_factors(make_factors(5, 1), None, VARIANCES.clone())


class TestNTKPlusNoise(CholeskyAtEverySize, unittest.TestCase):
    def create_linear_op(self):
        kernel = NTKLinearOperator.from_factors(make_factors(3, 2), None, VARIANCES.clone())
        return kernel + DiagLinearOperator(torch.linspace(0.5, 1.5, 6))

    def evaluate_linear_op(self, linear_op):
        kernel, noise = linear_op._linear_op, linear_op._diag_tensor
        jacobian = jacobian_of(kernel.left)
        return jacobian * spread(kernel) @ jacobian.mT + torch.diag(noise._diag)


class TestNTKPlusNTK(CholeskyAtEverySize, unittest.TestCase):
    def create_linear_op(self):
        one = NTKLinearOperator.from_factors(make_factors(3, 2), None, VARIANCES.clone())
        return one + NTKLinearOperator.from_factors(
            make_factors(3, 2, seed=1), None, VARIANCES.flip(0)
        )

    def evaluate_linear_op(self, linear_op):
        return sum(
            jacobian_of(op.left) * spread(op) @ jacobian_of(op.left).mT
            for op in linear_op.linear_ops
        )


class TestRectangularNTK(RectangularLinearOperatorTestCase, unittest.TestCase):
    seed = 0
    sizes = (3, 4)

    def create_linear_op(self):
        n, m = self.sizes
        return NTKLinearOperator.from_factors(
            make_factors(n, 2), make_factors(m, 2, seed=1), VARIANCES.clone()
        )

    def evaluate_linear_op(self, linear_op):
        return jacobian_of(linear_op.left) * spread(linear_op) @ jacobian_of(linear_op.right).mT


class TestSquareNTKOfTwoInputs(TestRectangularNTK):
    sizes = (3, 3)


class TestJacobian(RectangularLinearOperatorTestCase, unittest.TestCase):
    seed = 0

    def create_linear_op(self):
        return JacobianLinearOperator.from_factors(make_factors(3, 2))

    def evaluate_linear_op(self, linear_op):
        return jacobian_of(linear_op)


class TestTransposedJacobian(RectangularLinearOperatorTestCase, unittest.TestCase):
    seed = 0

    def create_linear_op(self):
        return JacobianLinearOperator.from_factors(make_factors(3, 2)).mT

    def evaluate_linear_op(self, linear_op):
        return jacobian_of(linear_op.jacobian).mT


def dense_ggn(operator):
    root = jacobian_of(operator.root)
    return root.mT @ root


class TestGGN(CholeskyAtEverySize, unittest.TestCase):
    """Fewer weights than sites: the GGN alone has an inverse."""

    def create_linear_op(self):
        return GGNLinearOperator.from_factors(make_tall_factors(20, 2), make_root(20, 2, 2))

    def evaluate_linear_op(self, linear_op):
        return dense_ggn(linear_op)


class TestGGNPlusPrecisionInWeightSpace(CholeskyAtEverySize, unittest.TestCase):
    def create_linear_op(self):
        ggn = GGNLinearOperator.from_factors(make_tall_factors(20, 2), make_root(20, 2, 2))
        return ggn + DiagLinearOperator(torch.linspace(0.5, 1.5, ggn.shape[0]))

    def evaluate_linear_op(self, linear_op):
        return dense_ggn(linear_op._linear_op) + torch.diag(linear_op._diag_tensor._diag)


class TestGGNPlusPrecisionInFunctionSpace(TestGGNPlusPrecisionInWeightSpace):
    """More weights than sites, and a root with fewer columns than outputs: Woodbury."""

    def create_linear_op(self):
        ggn = GGNLinearOperator.from_factors(make_factors(3, 2), make_root(3, 2, 1))
        return ggn + DiagLinearOperator(torch.linspace(0.5, 1.5, ggn.shape[0]))


del CholeskyAtEverySize, LinearOperatorTestCase, RectangularLinearOperatorTestCase
