"""Operators against dense float64 formulas, Jacobians from torch.func, over several networks."""

import pickle
import warnings
from math import ceil

import pytest
import torch
from linear_operator.operators import (
    AddedDiagLinearOperator,
    DiagLinearOperator,
    RootLinearOperator,
    SumLinearOperator,
)
from operator_cases import NETWORKS, dense_jacobian, make_root

from lingp.linearization import LinearizedNetwork
from lingp.operators import (
    GGNLinearOperator,
    JacobianLinearOperator,
    NTKLinearOperator,
    products,
)
from lingp.operators.exact import CholeskySolved, as_exact

N, M = 6, 5


class Setting:
    """Factors at N and at M inputs, their dense Jacobians, and prior variances."""

    def __init__(self, name):
        net, make = NETWORKS[name]()
        self.linearized = LinearizedNetwork(net)
        x, other = make(N, 0), make(M, 1)
        self.factors = self.linearized.factors(x)[1]
        self.other = self.linearized.factors(other)[1]
        self.j, self.k = dense_jacobian(net, x), dense_jacobian(net, other)
        count = len(self.factors.slices)
        self.variances = torch.linspace(0.3, 2.0, count, dtype=torch.float64)
        sizes = torch.tensor([s.stop - s.start for s in self.factors.slices])
        self.spread = self.variances.repeat_interleave(sizes)
        self.outputs = self.factors.num_outputs
        self.gram = self.j * self.spread @ self.j.mT
        self.cross = self.j * self.spread @ self.k.mT

    @property
    def ntk(self):
        return NTKLinearOperator.from_factors(self.factors, None, self.variances)

    @property
    def cross_ntk(self):
        return NTKLinearOperator.from_factors(self.factors, self.other, self.variances)


@pytest.fixture(params=sorted(NETWORKS), scope="module")
def setting(request):
    return Setting(request.param)


def close(a, b):
    scale = float(b.abs().max())
    torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-12 * max(scale, 1.0))


def test_jacobian_products(setting):
    op = JacobianLinearOperator.from_factors(setting.factors)
    generator = torch.Generator().manual_seed(0)
    v = torch.randn(2, op.shape[1], 3, generator=generator, dtype=torch.float64)
    u = torch.randn(op.shape[0], generator=generator, dtype=torch.float64)
    close(op.to_dense(), setting.j)
    close(op @ v, setting.j @ v)
    close(op.mT @ u, setting.j.mT @ u)
    columns = torch.tensor([0, 3, op.shape[1] - 1])
    close(op[:, columns].to_dense(), setting.j[:, columns])
    close(op[1:4].to_dense(), setting.j[1:4])
    u, s, v = op.svd()
    close(u.to_dense() * s @ v.to_dense().mT, setting.j)


def test_whole_points_stay_lazy(setting):
    c = setting.outputs
    rows = slice(c, 4 * c)
    jacobian = JacobianLinearOperator.from_factors(setting.factors)[rows]
    assert isinstance(jacobian, JacobianLinearOperator)
    close(jacobian.to_dense(), setting.j[rows])

    square, cross = setting.ntk[rows, rows], setting.cross_ntk[rows, : 2 * c]
    assert isinstance(square, NTKLinearOperator)
    assert isinstance(cross, NTKLinearOperator)
    assert square.is_symmetric
    assert not cross.is_symmetric
    close(square.to_dense(), setting.gram[rows, rows])
    close(cross.to_dense(), setting.cross[rows, : 2 * c])
    points = torch.tensor([4, 0, 0])
    picked = (points[:, None] * c + torch.arange(c)).flatten()
    lazy = setting.ntk[picked, :]
    assert isinstance(lazy, NTKLinearOperator)
    close(lazy.to_dense(), setting.gram[picked])


@pytest.mark.parametrize("rows", [slice(1, 4), slice(0, 5, 2), torch.tensor([-1, 2, 2, 0])])
@pytest.mark.parametrize("cols", [slice(None), slice(2, 3), torch.tensor([1, -2])])
def test_any_rows_and_columns(setting, rows, cols):
    if torch.is_tensor(rows) and torch.is_tensor(cols):
        rows, cols = rows[:, None], cols[None, :]
    for op, dense in ((setting.ntk, setting.gram), (setting.cross_ntk, setting.cross)):
        picked = op[rows, cols]
        close(picked if torch.is_tensor(picked) else picked.to_dense(), dense[rows, cols])
    part = setting.ntk[1:4, 1:4]
    assert isinstance(part, CholeskySolved)
    close(part.to_dense(), setting.gram[1:4, 1:4])


def test_single_entries_without_the_matrix(setting, monkeypatch):
    """A few entries far apart cost a few small blocks, not the whole matrix."""
    import lingp.operators.ntk as ntk

    sizes = []
    gram = ntk.gram

    def watched(left, right, variances):
        sizes.append(left.num_data * (left if right is None else right).num_data)
        return gram(left, right, variances)

    monkeypatch.setattr(ntk, "gram", watched)
    monkeypatch.setattr(ntk, "_PAIRS", 2)
    rows, cols = torch.arange(N * setting.outputs), torch.arange(N * setting.outputs).flip(0)
    close(setting.ntk[rows, cols], setting.gram[rows, cols])
    assert max(sizes) <= 4 or len(sizes) == 1


def test_diagonals_without_the_matrix(setting, monkeypatch):
    c = setting.outputs
    blocks = setting.gram.view(N, c, N, c).diagonal(dim1=0, dim2=2).movedim(-1, 0)
    cross = NTKLinearOperator.from_factors(
        setting.factors.rows(slice(0, M)), setting.other, setting.variances
    )
    monkeypatch.setattr("lingp.operators.ntk._PAIRS", 2)
    paired = setting.cross[: M * c].view(M, c, M, c).diagonal(dim1=0, dim2=2).movedim(-1, 0)
    monkeypatch.setattr(NTKLinearOperator, "to_dense", None)
    close(setting.ntk.diagonal_blocks(), blocks)
    close(setting.ntk.diagonal(), setting.gram.diagonal())
    close(cross.diagonal_blocks(), paired)
    close(cross.diagonal(), setting.cross.diagonal())


def test_products_without_the_matrix(setting, monkeypatch):
    v = torch.randn(3, N * setting.outputs, 2, dtype=torch.float64)
    w = torch.randn(M * setting.outputs, dtype=torch.float64)
    monkeypatch.setattr(products, "DENSE_BYTES", 0)
    monkeypatch.setattr(NTKLinearOperator, "to_dense", None)
    close(setting.ntk @ v, setting.gram @ v)
    close(setting.cross_ntk @ w, setting.cross @ w)
    close(setting.cross_ntk.mT @ v, setting.cross.mT @ v)


def test_products_form_the_matrix_once_they_have_paid_for_it(setting):
    operator, v = setting.ntk, torch.randn(N * setting.outputs, 1, dtype=torch.float64)
    factors = operator.left.factors
    count = ceil(products.gram_flops(factors, None) / products.product_flops(factors, factors, 1))
    for k in range(1, count + 2):
        close(operator @ v, setting.gram @ v)
        assert (operator._dense is not None) == (k >= count)


def test_a_matrix_formed_without_gradients_does_not_serve_for_them(setting):
    variances = setting.variances.clone().requires_grad_(True)
    ntk = NTKLinearOperator.from_factors(setting.factors, None, variances)
    with torch.no_grad():
        ntk.to_dense()
    (found,) = torch.autograd.grad(ntk.to_dense().sum(), variances)
    sizes = torch.tensor([s.stop - s.start for s in setting.factors.slices])
    dense = setting.j * variances.repeat_interleave(sizes) @ setting.j.mT
    torch.testing.assert_close(found, torch.autograd.grad(dense.sum(), variances)[0])


def test_multiples_keep_the_form(setting):
    scaled = setting.ntk * torch.tensor(2.5, dtype=torch.float64)
    assert isinstance(scaled, NTKLinearOperator)
    close(scaled.to_dense(), 2.5 * setting.gram)
    close((setting.ntk * -3.0).to_dense(), -3.0 * setting.gram)
    close((setting.ntk * 0.0).to_dense(), 0.0 * setting.gram)


def test_gradients_for_variances(setting):
    """Of dense entries, of products, of the diagonal, of a solve and of a log determinant."""
    rhs = torch.randn(N * setting.outputs, 2, dtype=torch.float64)
    noise = torch.linspace(0.5, 1.5, N * setting.outputs, dtype=torch.float64)
    weight = torch.randn_like(setting.gram)

    def dense(variances):
        sizes = torch.tensor([s.stop - s.start for s in setting.factors.slices])
        return setting.j * variances.repeat_interleave(sizes) @ setting.j.mT

    def ours(variances):
        return NTKLinearOperator.from_factors(setting.factors, None, variances)

    def regular(k):
        return (k + torch.diag(noise)) if torch.is_tensor(k) else k.add_diagonal(noise)

    cases = [
        (lambda k: (k.to_dense() * weight).sum(), lambda k: (k * weight).sum()),
        (lambda k: (k @ rhs).square().sum(), lambda k: (k @ rhs).square().sum()),
        (lambda k: k.diagonal().log().sum(), lambda k: k.diagonal().log().sum()),
        (
            lambda k: regular(k).solve(rhs).square().sum(),
            lambda k: torch.linalg.solve(regular(k), rhs).square().sum(),
        ),
        (lambda k: regular(k).logdet(), lambda k: torch.logdet(regular(k))),
    ]
    for of_operator, of_matrix in cases:
        variances = setting.variances.clone().requires_grad_(True)
        expected = torch.autograd.grad(of_matrix(dense(variances)), variances)[0]
        found = torch.autograd.grad(of_operator(ours(variances)), variances)[0]
        torch.testing.assert_close(found, expected, rtol=1e-8, atol=1e-10)


def test_sums_are_solved_by_cholesky(setting):
    """Noise, another operator, a root, a matrix: none of the sums is left to size thresholds."""
    n = N * setting.outputs
    noise = DiagLinearOperator(torch.linspace(0.5, 1.5, n, dtype=torch.float64))
    root = torch.randn(n, 2, dtype=torch.float64)
    rhs = torch.randn(n, 3, dtype=torch.float64)
    sums = [
        (setting.ntk + noise, setting.gram + noise.to_dense()),
        (setting.ntk + RootLinearOperator(root) + noise, setting.gram + root @ root.mT),
        (setting.ntk + (root @ root.mT) + noise, setting.gram + root @ root.mT),
        ((setting.ntk + noise) + setting.ntk * 0.5, 1.5 * setting.gram),
    ]
    for operator, expected in sums:
        assert isinstance(operator, CholeskySolved)
        if operator is not sums[0][0]:
            expected = expected + noise.to_dense()
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            torch.testing.assert_close(
                operator.solve(rhs), torch.linalg.solve(expected, rhs), rtol=1e-8, atol=1e-10
            )
            torch.testing.assert_close(
                operator.logdet(), torch.logdet(expected), rtol=1e-10, atol=1e-10
            )


def test_as_exact_of_foreign_operators(setting):
    noise = DiagLinearOperator(torch.ones(N * setting.outputs, dtype=torch.float64))
    foreign = SumLinearOperator(setting.ntk, setting.ntk)
    for operator in (foreign, AddedDiagLinearOperator(foreign, noise)):
        exact = as_exact(operator)
        assert isinstance(exact, CholeskySolved)
        close(exact.to_dense(), operator.to_dense())


def test_two_sets_of_inputs_are_not_factorised(setting):
    cross = NTKLinearOperator.from_factors(
        setting.factors.rows(slice(0, M)), setting.other, setting.variances
    )
    for solve in (
        lambda: cross.cholesky(),
        lambda: cross.logdet(),
        lambda: cross.solve(torch.ones(cross.shape[0], dtype=torch.float64)),
        lambda: torch.linalg.eigh(cross),
    ):
        with pytest.raises(RuntimeError, match="between two sets of inputs"):
            solve()


def test_pickled_and_moved(setting):
    for op in (setting.ntk, setting.cross_ntk, JacobianLinearOperator.from_factors(setting.other)):
        op.to_dense()
        copy = pickle.loads(pickle.dumps(op))
        close(copy.to_dense(), op.to_dense())
        single = op.to(torch.float32)
        assert single.dtype == single.to_dense().dtype == torch.float32
        torch.testing.assert_close(single.to_dense().double(), op.to_dense(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("columns", [1, 2])
def test_ggn(setting, columns):
    root = make_root(N, setting.outputs, columns, dtype=torch.float64)
    half = setting.j.mT @ torch.block_diag(*root)
    dense = half @ half.mT
    ggn = GGNLinearOperator.from_factors(setting.factors, root)
    p = ggn.shape[0]
    v = torch.randn(2, p, 3, dtype=torch.float64)
    close(ggn.to_dense(), dense)
    close(ggn @ v, dense @ v)
    close(ggn.diagonal(), dense.diagonal())
    index = torch.tensor([0, p - 1, 3])
    close(ggn[index, :][:, index].to_dense(), dense[index][:, index])
    close(ggn[1:3, 2:].to_dense(), dense[1:3, 2:])
    close(ggn[index, index.flip(0)], dense[index, index.flip(0)])


def test_ggn_with_precision_in_both_spaces(setting):
    """Woodbury and the dense matrix agree: solves, quadratic forms, log determinants, gradients."""
    root = make_root(N, setting.outputs, setting.outputs, dtype=torch.float64)
    half = setting.j.mT @ torch.block_diag(*root)
    p = len(half)
    assert p > N * setting.outputs
    rhs = torch.randn(p, 2, dtype=torch.float64)
    gradients = []
    for space in ("operator", "dense"):
        precision = torch.linspace(0.1, 2.0, p, dtype=torch.float64, requires_grad=True)
        curvature = root.clone().requires_grad_(True)
        if space == "operator":
            ggn = GGNLinearOperator.from_factors(setting.factors, curvature)
            total = ggn + DiagLinearOperator(precision)
            assert total._in_function_space
            quad, logdet = total.inv_quad_logdet(rhs, logdet=True, reduce_inv_quad=False)
            solved = total.solve(rhs)
        else:
            half = setting.j.mT @ torch.block_diag(*curvature)
            total = half @ half.mT + torch.diag(precision)
            solved = torch.linalg.solve(total, rhs)
            quad, logdet = (rhs * solved).sum(0), torch.logdet(total)
        value = quad.sum() + logdet + solved.square().sum()
        gradients.append((quad, logdet, *torch.autograd.grad(value, (precision, curvature))))
    for ours, dense in zip(*gradients, strict=True):
        torch.testing.assert_close(ours, dense, rtol=1e-8, atol=1e-10)


def test_curvature_root_of_another_size_is_refused(setting):
    with pytest.raises(ValueError, match="curvature_root: got shape"):
        GGNLinearOperator.from_factors(setting.factors, torch.ones(N + 1, setting.outputs, 1))
