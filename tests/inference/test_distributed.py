"""Two processes with a shard of the rows each give what one process with all rows gives."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import distributed_worker as worker
import pytest
import torch

from lingp.runtime.shards import Shards, communication_device

ROOT = Path(__file__).parents[2]
NUM_RANKS = 2
OTHERS = ("same bits", "refusals", "choices", "wrong data")
SPREAD = [name for name in worker.CASES if name not in OTHERS]
# sums in another order, amplified by condition numbers below 1e4
LOSS = {torch.float64: 1e-10, torch.float32: 1e-5, torch.int64: 0}


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    """What each rank found, in every case: one pair of processes for all tests."""
    return launch(NUM_RANKS, "gloo", tmp_path_factory.mktemp("ranks"))


def launch(size, backend, folder):
    """What each of so many processes found."""
    environment = os.environ | {
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join(
            [str(ROOT), str(ROOT / "tests"), os.environ.get("PYTHONPATH", "")]
        ),
    }
    processes = [
        subprocess.Popen(
            [
                sys.executable,
                worker.__file__,
                str(rank),
                str(size),
                str(folder / "meeting"),
                str(folder / f"{rank}.pt"),
                backend,
            ],
            env=environment,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(size)
    ]
    try:
        said = [process.communicate(timeout=300)[1] for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert [process.returncode for process in processes] == [0] * size, "\n".join(said)
    return [torch.load(folder / f"{rank}.pt", weights_only=False) for rank in range(size)]


def check_case(found, name, slack=1):
    """What a rank found in a case is what one process finds."""
    expected = worker.detached(worker.CASES[name](Shards.single()))
    assert "error" not in found[name], found[name]["error"]
    assert found[name].keys() == expected.keys()
    for key, value in expected.items():
        if not isinstance(value, torch.Tensor):
            assert found[name][key] == value, key
            continue
        loss = slack * LOSS[value.dtype]
        torch.testing.assert_close(
            found[name][key], value, rtol=loss, atol=loss, msg=lambda m, key=key: f"{key}: {m}"
        )


@pytest.mark.parametrize("name", SPREAD)
def test_two_processes_are_one(ranks, name):
    for found in ranks:
        check_case(found, name)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_nccl(tmp_path, monkeypatch):
    """On as many GPUs as there are, up to two; one is a group of its own."""
    found = launch(min(NUM_RANKS, torch.cuda.device_count()), "nccl", tmp_path)
    monkeypatch.setattr(worker, "DEVICE", torch.device("cuda"))
    for name in SPREAD:
        for rank in found:
            check_case(rank, name, slack=100)


@pytest.mark.parametrize(
    ("backends", "device", "expected"),
    [
        ("cpu:gloo,cuda:gloo", "cpu", "cpu"),
        ("cpu:gloo,cuda:gloo", "cuda", "cpu"),
        ("cuda:nccl", "cpu", "cuda"),
        ("cuda:nccl", "cuda", "cuda"),
        ("cpu:gloo,cuda:nccl", "cpu", "cpu"),
        ("cpu:gloo,cuda:nccl", "cuda", "cuda"),
        ("cpu:mpi,cuda:mpi", "cuda", "cuda"),
    ],
)
def test_tensors_go_where_the_backend_takes_them(backends, device, expected):
    assert communication_device(torch.device(device), backends) == torch.device(expected)


def test_sums_are_the_same_bit_for_bit(ranks):
    """Ranks decide by them when to stop: one last bit apart, one of them would wait forever."""
    first, second = (found["same bits"] for found in ranks)
    assert first.keys() == second.keys()
    assert len(first) == 8
    for name, value in first.items():
        assert torch.equal(value, second[name]), name


def test_an_error_on_one_rank_stops_all(ranks):
    first, second = (found["refusals"] for found in ranks)
    assert first["failed"] == "OtherRankError: rank 1 of 2 failed: ValueError: y: bad"
    assert second["failed"] == "ValueError: y: bad"
    for told in (first, second):
        assert "rank 1 of 2 has no rows" in told["empty"]
        assert "disagree about precision: rank 0 has 1.0, rank 1 has 2.0" in told["disagree"]
        assert told["agree"] == "nothing raised"
        assert told["went on"] == "yes"


def test_what_needs_all_data_is_not_chosen(ranks):
    for told in (found["choices"] for found in ranks):
        assert told["auto"] == "weight_space"
        assert 'use "weight_space", Sparse(...) or Iterative(...)' in told["function space"]
        assert "leave_one_out: not available with a process_group" in told["leave-one-out"]
        assert "leave_one_out: not available with a process_group" in told["objective"]


def test_one_rank_makes_a_mistake(ranks):
    first, second = (found["wrong data"] for found in ranks)
    assert first["targets"].startswith("OtherRankError: rank 1 of 2 failed: ValueError: ")
    assert second["targets"] in first["targets"]
    assert "rank 1 of 2 failed: ValueError: X: gave no batches" in first["empty"]
    for told in (first, second):
        assert "disagree about prior.raw_precision: rank 0 has 0.0" in told["prior"]
        assert "disagree about the weights of the network" in told["network"]
        assert "disagree about the inducing inputs" in told["inducing"]
        for mistake in ("prediction", "sizes"):
            assert "disagree about the inputs that iterative inference" in told[mistake]
    assert torch.equal(first["went on"], second["went on"])


@pytest.mark.parametrize("wrong", [2, "gloo", object()])
def test_only_process_groups(wrong):
    with pytest.raises(TypeError, match=r"process_group: expected a torch\.distributed"):
        Shards.of(wrong)
    assert Shards.of(None).alone
