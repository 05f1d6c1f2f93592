"""Candidates judged by a Ray cluster: one of two machines is lost in the middle, and each has exactly one result."""

import json
import subprocess
import sys
import time

import pytest

from tests.batch.lines import RIGHT, WRONG, line, listing, numbered, valid
from tests.processes import with_touchstone
from touchstone.conformance.cli import main

SECONDS = 240.0  # for a run: a worker starts in ten
SOON_NOTICED = {"health_check_period_ms": 500, "health_check_timeout_ms": 1000, "health_check_failure_threshold": 2}
SLOWED = "import time\n" + RIGHT.replace("    return", "    time.sleep(0.05)\n    return")


@pytest.mark.slow
@pytest.mark.needs("ray")
def test_each_candidate_has_one_result_though_a_machine_is_lost(tmp_path):
    from ray.cluster_utils import Cluster

    lines = [line(numbered(SLOWED, number), id=str(number)) for number in range(14)]
    listing(tmp_path, [*lines, line(WRONG, id="wrong"), line(WRONG, id="same")])
    out = tmp_path / "results.jsonl"
    head = {"num_cpus": 1, "include_dashboard": False, "_system_config": SOON_NOTICED}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    try:
        other = cluster.add_node(num_cpus=1)
        arguments = ["--trusted", "--device=cpu", f"--ray={cluster.address}", "--out=results.jsonl"]
        run = subprocess.Popen(
            [sys.executable, "-m", "touchstone", "judge", "candidates.jsonl", *arguments],
            cwd=tmp_path,
            env=with_touchstone(),
        )
        end = time.monotonic() + SECONDS
        while not out.exists() or out.read_bytes().count(b"\n") < 3:
            assert run.poll() is None and time.monotonic() < end
            time.sleep(0.05)
        cluster.remove_node(other, allow_graceful=False)
        done = out.read_bytes().count(b"\n")
        assert run.wait(SECONDS) == 1
    finally:
        cluster.shutdown()
    assert done < 12, "the machine was lost too late to show anything"
    found = [json.loads(text) for text in out.read_text().splitlines()]
    verdicts = {record["candidate"]["id"]: record["verdict"] for record in found}
    assert len(found) == len(verdicts) == 16
    assert verdicts == {**{str(number): "passed" for number in range(14)}, "wrong": "failed", "same": "failed"}
    for record in found:
        valid(record)


@pytest.mark.needs("ray")
def test_no_cluster_is_the_machines_fault(tmp_path, capsys):
    path = str(listing(tmp_path, [line(RIGHT)]))
    assert main(["judge", path, "--ray=127.0.0.1:1", f"--out={tmp_path / 'results.jsonl'}"]) == 3
    assert "--ray: no cluster at 127.0.0.1:1: " in capsys.readouterr().err


def test_a_cluster_takes_ray(tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    path = str(listing(tmp_path, [line(RIGHT)]))
    assert main(["judge", path, "--ray=auto", f"--out={tmp_path / 'results.jsonl'}"]) == 3
    assert 'Ray is not installed: pip install "touchstone-kernels[fleet]"' in capsys.readouterr().err
