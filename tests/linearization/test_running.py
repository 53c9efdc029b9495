"""Settings of the process under which networks run."""

import pytest
import torch
from torch import nn

from lingp.linearization.running import _full_precision_convolutions, _NativeRecurrence


def settings():
    cudnn = torch.backends.cudnn
    return cudnn.enabled, cudnn.conv.fp32_precision, cudnn.rnn.fp32_precision


def test_settings_of_cudnn_are_set_and_come_back():
    before = settings()
    lstm = nn.LSTM(4, 5)
    with _full_precision_convolutions():
        assert settings() == (before[0], "ieee", "ieee")
        with _NativeRecurrence():
            lstm(torch.zeros(2, 3, 4))
            with pytest.raises(RuntimeError, match="size"):
                lstm(torch.zeros(2, 3, 9))
        assert settings()[0] == before[0]
    assert settings() == before
    assert isinstance(torch.backends.cudnn.allow_tf32, bool)  # an error while precisions differ
