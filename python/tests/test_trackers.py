"""`train.report_to` against the real servers of MLflow and trackio, from PyPI: what arrives there, and that a resumed run goes on.

The first time, both are installed into an environment in the cache (700 MB); where that is not possible, the tests are skipped.
"""

import json
import os
import re
import signal
import socket
import subprocess
import time
import urllib.request
import venv
from pathlib import Path

import pytest

PACKAGES = ["mlflow==3.17.2", "trackio==0.43.0"]
ROOT = Path(__file__).resolve().parents[2]
CONFIG = """\
name: tiny
device: cpu
threads: 1
model: {hidden_size: 16, intermediate_size: 24, num_hidden_layers: 1, num_attention_heads: 2}
data: {path: text.txt, block_size: 16}
sample: {max_new_tokens: 0}
train:
  bf16: false
  max_steps: 4
  per_device_train_batch_size: 2
  lr_scheduler_type: constant
  logging_steps: 1
  eval_steps: 2
  save_steps: 2
"""


@pytest.fixture(scope="module")
def trainer():
    named = os.environ.get("SUREFOOT_PROGRAM", ROOT / "target/debug/surefoot")
    found = [path for path in [Path(named).with_name("surefoot-trainer")] if path.is_file()]
    if not found:
        pytest.skip("no surefoot-trainer: `cargo build -p surefoot` builds it")
    return found[0]


@pytest.fixture(scope="module")
def environment():
    """The `bin` folder of an environment with both."""
    cache = Path(os.environ.get("SUREFOOT_CACHE", Path.home() / ".cache/surefoot"))
    folder = Path(os.environ.get("SUREFOOT_TRACKERS", cache / "venv-trackers"))
    stamp = folder / "installed"
    if not stamp.is_file() or stamp.read_text().split() != PACKAGES:
        venv.create(folder, with_pip=True)
        pip = [folder / "bin/python", "-m", "pip", "install", "--quiet", *PACKAGES]
        done = subprocess.run(pip, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            pytest.skip(f"MLflow and trackio cannot be installed: {done.stderr[-300:]}")
        stamp.write_text("\n".join(PACKAGES))
    return folder / "bin"


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


class Server:
    def __init__(self, folder, command, **variables):
        self.log = folder / "server.log"
        clean = {name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")}
        self.process = subprocess.Popen(
            command, cwd=folder, env={**clean, **variables}, stdout=self.log.open("wb"), stderr=subprocess.STDOUT, start_new_session=True
        )

    def wait_for(self, address):
        """Until it answers, or has ended."""
        while self.process.poll() is None:
            try:
                return urllib.request.urlopen(address, timeout=5).read()
            except OSError:
                time.sleep(0.2)
        raise AssertionError(self.log.read_text())

    def stop(self):
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


def train(trainer, folder, report_to, *more, **variables):
    (folder / "text.txt").write_text("".join(f"{n} bottles of ale\n" for n in range(400)))
    (folder / "config.yaml").write_text(CONFIG)
    clean = {name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy") and name != "HIP_ALLOC_LIB"}
    keys = [f"train.report_to={report_to}", *more]
    arguments = [word for key in keys for word in ("--set", key)]
    done = subprocess.run(
        [trainer, "train", "config.yaml", *arguments],
        cwd=folder,
        env={**clean, "HIP_ALLOC": "0", "SUREFOOT_CACHE": str(folder / "cache"), **variables},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert report_to not in done.stderr, done.stderr  # no warning
    lines = (folder / "runs/tiny/metrics.jsonl").read_text().splitlines()
    records = [json.loads(line) for line in lines]
    return {record["step"]: record["loss"] for record in records if record["kind"] == "train"}


def in_two(trainer, folder, report_to, **variables):
    """A run that is stopped and resumed; its losses."""
    train(trainer, folder, report_to, "train.max_steps=2", **variables)
    losses = train(trainer, folder, report_to, "train.resume_from_checkpoint=latest", **variables)
    assert sorted(losses) == [1, 2, 3, 4]
    return losses


def test_mlflow(trainer, environment, tmp_path):
    port = free_port()
    address = f"http://127.0.0.1:{port}"
    store = f"sqlite:///{tmp_path / 'mlflow.db'}"
    command = [environment / "mlflow", "server", "--host", "127.0.0.1", "--port", str(port), "--workers", "1", "--backend-store-uri", store]
    server = Server(tmp_path, command)
    try:
        server.wait_for(f"{address}/health")
        losses = in_two(trainer, tmp_path, "mlflow", MLFLOW_TRACKING_URI=address, MLFLOW_EXPERIMENT_NAME="it's mine")
        code = (
            "import json, mlflow\n"
            f"mlflow.set_tracking_uri({address!r})\n"
            "client = mlflow.MlflowClient()\n"
            "experiment = client.get_experiment_by_name(\"it's mine\")\n"
            "[run] = client.search_runs([experiment.experiment_id])\n"
            "history = client.get_metric_history(run.info.run_id, 'train/loss')\n"
            "print(json.dumps([run.info.run_name, run.info.status, run.data.params['train.learning_rate'],"
            " {m.step: m.value for m in history}, len(history), 'eval/loss' in run.data.metrics]))\n"
        )
        seen = subprocess.run([environment / "python", "-c", code], capture_output=True, text=True, check=False)
        name, status, rate, history, count, evaluated = json.loads(seen.stdout.splitlines()[-1])
        assert (name, status, float(rate), count, evaluated) == ("tiny", "FINISHED", 0.001, 4, True)
        assert {int(step): loss for step, loss in history.items()} == losses
    finally:
        server.stop()


def test_trackio(trainer, environment, tmp_path):
    port = free_port()
    code = f"import trackio; trackio.show(open_browser=False, block_thread=True, host='127.0.0.1', server_port={port})"
    variables = {"TRACKIO_DIR": str(tmp_path / "trackio"), "TRACKIO_WRITE_TOKEN": "a-token", "PYTHONUNBUFFERED": "1", "HF_HUB_OFFLINE": "1"}
    server = Server(tmp_path, [environment / "python", "-c", code], **variables)
    try:
        address = None
        while address is None:
            assert server.process.poll() is None, server.log.read_text()
            address = re.search(rf"http://127\.0\.0\.1:{port}", server.log.read_text())
            time.sleep(0.2)
        server.wait_for(f"http://127.0.0.1:{port}/")
        url = f"http://127.0.0.1:{port}/?write_token=a-token"
        losses = in_two(trainer, tmp_path, "trackio", TRACKIO_SERVER_URL=url, TRACKIO_PROJECT="mine")
        code = (
            "import json\n"
            "from trackio.sqlite_storage import SQLiteStorage as storage\n"
            "runs = storage.get_runs('mine')\n"
            "print(json.dumps([runs, storage.get_logs('mine', 'tiny')]))\n"
        )
        seen = subprocess.run(
            [environment / "python", "-c", code], env={**os.environ, **variables}, capture_output=True, text=True, check=False
        )
        runs, logs = json.loads(seen.stdout.splitlines()[-1])
        assert runs == ["tiny"]
        assert {log["step"]: log["train/loss"] for log in logs if "train/loss" in log} == losses
    finally:
        server.stop()
