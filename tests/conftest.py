"""Puts this directory on the path, so that every test can import the shared table `cases`."""

import gpytorch
import pytest

# pytest-xdist's controller imports the modules of warnings in the threads that hear from its
# workers, and two threads that import a package at a time can deadlock: so it is imported before
import lingp  # noqa: F401


@pytest.fixture(autouse=True, scope="module")
def gpytorchs_own_settings(request):
    """BoTorch changes GPyTorch's settings as soon as it is imported, for all tests that follow."""
    if "integrations" in request.path.parts:
        yield
        return
    settings = gpytorch.settings
    with (
        settings.fast_computations(),
        settings.max_cholesky_size(800),
        settings.max_eager_kernel_size(512),
        settings.cholesky_max_tries(3),
    ):
        yield
