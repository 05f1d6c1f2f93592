"""A machine that lacks what a run needs: the run says so, with the exit status that is for it, and nothing else."""

import json
import os
import resource

import pytest

from tests.processes import Fork
from touchstone.conformance.cli import main

RIGHT = "import torch\n\n\ndef softmax(x):\n    return torch.softmax(x.float(), -1).to(x.dtype).contiguous()\n"
NARROW = ["--device=cpu", "--quick", "--dtypes=float32", "--sizes=rows=3"]


@pytest.fixture
def kernel(tmp_path):
    path = tmp_path / "kernel.py"
    path.write_text(RIGHT)
    return path


def test_a_limit_on_the_size_of_files_is_no_verdict(tmp_path):
    line = {"op": "softmax", "source": RIGHT, "dtypes": ["float32"], "sizes": {"rows": [3]}}
    (tmp_path / "candidates.jsonl").write_text(json.dumps(line) + "\n")

    def limited():
        resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))
        return main(["judge", "candidates.jsonl", "--device=cpu", "--trusted", "--out=results.jsonl"])

    done = Fork(limited, tmp_path)
    assert done.wait() == 3 and "could not go on: [Errno 27] File too large" in done.err.read_text()
    assert (tmp_path / "results.jsonl").read_text() == ""  # no part of a line


@pytest.mark.parametrize(("source", "status"), [(RIGHT, 0), (RIGHT.replace("-1", "0"), 1)], ids=["right", "wrong"])
def test_a_folder_that_was_removed_changes_no_verdict(tmp_path, kernel, source, status):
    kernel.write_text(source)

    def homeless():
        os.mkdir("gone")
        os.chdir("gone")
        os.rmdir("../gone")
        return main(["check", "softmax", f"--kernel={kernel}:softmax", *NARROW])

    done = Fork(homeless, tmp_path)
    assert done.wait() == status and "Traceback" not in done.err.read_text(), done.err.read_text()


def test_a_record_that_cannot_be_written_meanwhile_is_told_at_the_end(tmp_path, kernel):
    kernel.write_text(
        f"import os\n{RIGHT}\n\nos.makedirs({str(tmp_path / 'record.json/in_the_way')!r}, exist_ok=True)\n"
    )
    words = ["bench", "softmax", f"--kernel={kernel}:softmax", "--device=cpu", "--first", "--seconds=0.02"]
    done = Fork(lambda: main([*words, "--no-baselines", "--json=record.json"]), tmp_path)
    assert done.wait() == 3 and "--json: record.json: Is a directory" in done.err.read_text()
    assert "softmax" in done.out.read_text()  # and what was measured
