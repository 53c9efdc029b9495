"""All or nothing: work that is cut short leaves objects as they were."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn


@contextmanager
def restored_on_error(*objects: object) -> Iterator[None]:
    """Put objects back as they were if the work inside raises, also if it is interrupted (Ctrl-C).

    Parameters
    ----------
    *objects
        Which attributes they have, and which objects those are, is put back; of modules the values
        of parameters and buffers, too.
    """
    modules = [o for o in objects if isinstance(o, nn.Module)]
    tensors = [t for module in modules for t in (*module.parameters(), *module.buffers())]
    values = [t.detach().clone() for t in tensors]
    held = [vars(o) for o in objects]
    held += [vars(m)[name] for m in modules for name in ("_parameters", "_buffers", "_modules")]
    attributes = [(names, dict(names)) for names in held]
    try:
        yield
    except BaseException:
        for now, before in attributes:
            now.clear()
            now.update(before)
        with torch.no_grad():
            for tensor, value in zip(tensors, values, strict=True):
                tensor.copy_(value)
        raise
