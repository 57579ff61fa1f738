"""Tests runs of two ranks under torchrun with injected faults.

Each case trains the same small model to the same step, breaks something on the way, and ends with the
weights and moments of a run that nobody disturbed, bit for bit, or has failed:

- `kills`: one of two ranks on one machine is killed (SIGKILL), at twenty random moments;
- two machines, each a network namespace with an agent, a cache and an output folder of its own: a rank
  stopped for a minute; one packet in a hundred lost; the cable out for five seconds, and for a minute; the
  second machine switched off and on again, with its agent; and, of `--nnodes 1:2`, off for good, when the first
  one ends the run alone, with other weights.

An agent that ends is started again, as systemd would. Needs root for the namespaces, `ip`, and `nft` for the
loss (the kernel's `netem` is not everywhere). The numbers go to a JSON file.
"""

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

CONFIG = """\
name: faults
device: cpu
threads: 1
model: {{hidden_size: 64, intermediate_size: 128, num_hidden_layers: 2, num_attention_heads: 4}}
data: {{path: {text}, block_size: 64}}
sample: {{max_new_tokens: 0}}
train:
  bf16: false
  max_steps: {steps}
  per_device_train_batch_size: 4
  learning_rate: 0.003
  logging_steps: 1
  eval_steps: 0
  save_steps: {save}
  save_total_limit: 3
  rank_timeout: {timeout}
"""
ADDRESSES = ["10.77.32.1", "10.77.32.2"]
SPACES = ["surefoot-faults-a", "surefoot-faults-b"]
PORT = 29_721
# A run that takes longer is considered hung.
PATIENCE = 900
# A variable in the environment of every process of a case, with which its ranks are found.
MARK = "SUREFOOT_FAULTS"


class Agent:
    """torchrun on one machine, restarted when it fails."""

    def __init__(self, case, machine, arguments, space=None):
        self.case, self.machine, self.space = case, machine, space
        self.arguments = arguments
        self.starts = 0
        self.is_off = False
        self.process = None
        self.start()

    def start(self):
        folder = self.case.folder / self.machine
        folder.mkdir(exist_ok=True)
        command = [sys.executable, "-m", "torch.distributed.run", "--no-python", *self.arguments]
        command += [str(self.case.trainer), "train", str(self.case.config)]
        command += ["--set", f"output_dir={folder / 'runs'}"]
        if self.space:
            command = ["ip", "netns", "exec", self.space, *command]
        environment = dict(
            os.environ,
            OMP_NUM_THREADS="1",
            SUREFOOT_CACHE=str(folder / "cache"),
            HIP_ALLOC="0",
            # If the ranks share the store of torchrun's agent, its address is published only once, and a machine that
            # comes back does not get it; without sharing, rank 0 runs the store, and each start publishes it.
            TORCH_DISABLE_SHARE_RDZV_TCP_STORE="1",
            **{MARK: self.case.mark(self.machine)},
        )
        self.log = open(folder / "log.txt", "a")
        self.process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log, env=environment
        )
        self.starts += 1
        self.is_off = False

    def is_done(self):
        """Whether it has succeeded; restarts it if it has failed."""
        if self.is_off:
            return False
        status = self.process.poll()
        if status is None:
            return False
        if status == 0:
            return True
        if self.starts > 20:
            raise RuntimeError(f"the agent of {self.machine} fails again and again: {self.log.name}")
        time.sleep(1)
        self.start()
        return False

    def switch_off(self):
        """Kills the agent and its ranks at once, as in a power failure."""
        self.is_off = True
        for pid in self.case.processes(self.machine):
            kill(pid, signal.SIGKILL)
        self.process.wait()


class Case:
    """One run, in its own folder."""

    def __init__(self, options, name, steps=None, timeout=600):
        self.options, self.name = options, name
        self.trainer = options.trainer
        self.folder = options.scratch / name
        self.folder.mkdir()
        self.steps = steps or options.steps
        self.config = self.folder / "config.yaml"
        text = options.scratch / "text.txt"
        self.config.write_text(
            CONFIG.format(text=text, steps=self.steps, save=options.save, timeout=timeout)
        )
        self.agents = []

    def mark(self, machine):
        return f"{os.getpid()}-{self.name}-{machine}"

    def processes(self, machine, rank=None):
        """The processes of a machine, or only the one with this global rank."""
        mark = f"{MARK}={self.mark(machine)}".encode()
        found = []
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit():
                continue
            try:
                environment = (entry / "environ").read_bytes().split(b"\0")
                program = os.readlink(entry / "exe")
            except OSError:
                continue
            if mark not in environment:
                continue
            if rank is None:
                found.append(int(entry.name))
            elif program == str(self.trainer) and f"RANK={rank}".encode() in environment:
                found.append(int(entry.name))
        return found

    def run_folders(self):
        """The run folders on all machines, the newest last."""
        def begun(folder):
            try:
                return (folder / ".torchrun").stat().st_mtime
            except OSError:
                # It is being created, or its rank was killed at that moment.
                return 0

        return sorted(self.folder.glob("*/runs/*"), key=begun)

    def run_folder(self):
        """The run folder, on any machine."""
        return (self.run_folders() or [None])[-1]

    def step(self):
        """The last recorded step."""
        folder = self.run_folder()
        if folder is None:
            return 0
        try:
            lines = (folder / "metrics.jsonl").read_text().splitlines()
            return json.loads(lines[-1])["step"]
        except (OSError, IndexError, ValueError):
            # It does not exist yet, or is being written.
            return 0

    def checkpoints_lost(self):
        """Checkpoints of runs that were not continued. A run without a checkpoint starts again."""
        before = self.run_folders()[:-1]
        return sum(len(list(folder.glob("checkpoints/step-*"))) for folder in before)

    def wait(self, tick=lambda: None):
        """Waits until all agents have succeeded."""
        began = time.monotonic()
        try:
            while not all([agent.is_done() for agent in self.agents]):
                if time.monotonic() - began > PATIENCE:
                    raise RuntimeError(f"{self.name}: not finished after {PATIENCE} s: {self.folder}")
                tick()
                time.sleep(0.02)
        finally:
            for agent in self.agents:
                agent.switch_off()

    def result(self):
        """Weights and moments after the last step."""
        checkpoint = self.run_folder() / "checkpoints" / f"step-{self.steps:06}"
        files = sorted(checkpoint.glob("*.safetensors"))
        if len(files) < 2:
            raise RuntimeError(f"weights and moments are not in {checkpoint}")
        return {file.name: file.read_bytes() for file in files}

    def restarts(self):
        """The number of restarts of ranks."""
        return sum(
            log.read_text(errors="replace").count("resumed    after step")
            for log in self.folder.glob("*/log.txt")
        )


def kill(pid, number):
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass


def on_one_machine(options, name):
    case = Case(options, name)
    arguments = ["--standalone", "--nproc-per-node", "2", "--max-restarts", "100"]
    case.agents = [Agent(case, "a", [*arguments, "--monitor-interval", "0.2"])]
    return case


def on_two_machines(options, name, steps=None, timeout=600, machines="2"):
    case = Case(options, name, steps, timeout)
    for index, (machine, space, address) in enumerate(zip("ab", SPACES, ADDRESSES)):
        arguments = ["--nnodes", machines, "--nproc-per-node", "1", "--max-restarts", "100"]
        arguments += ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"{ADDRESSES[0]}:{PORT}"]
        arguments += ["--rdzv-id", name, "--local-addr", address, "--monitor-interval", "0.2"]
        arguments += ["--rdzv-conf", f"is_host={int(index == 0)},join_timeout=300,read_timeout=30"]
        case.agents.append(Agent(case, machine, arguments, space))
    return case


class Cable:
    """Two network namespaces with a link between them."""

    def __enter__(self):
        self.cut()
        for space in SPACES:
            run("ip", "netns", "add", space)
        a, b = SPACES
        run("ip", "link", "add", "sffault0", "netns", a, "type", "veth", "peer", "sffault1", "netns", b)
        for index, (space, address) in enumerate(zip(SPACES, ADDRESSES)):
            run("ip", "-n", space, "address", "add", f"{address}/24", "dev", f"sffault{index}")
            run("ip", "-n", space, "link", "set", "lo", "up")
            run("ip", "-n", space, "link", "set", f"sffault{index}", "up")
        return self

    def cut(self):
        for space in SPACES:
            subprocess.run(["ip", "netns", "delete", space], stderr=subprocess.DEVNULL)

    def __exit__(self, *_):
        self.cut()

    def set(self, state):
        run("ip", "-n", SPACES[1], "link", "set", "sffault1", state)

    def lose(self, share):
        """Drops one packet in `share`, in both directions."""
        for space in SPACES:
            rules = (
                "table inet loss { chain in { type filter hook input priority 0; "
                f"numgen random mod {share} < 1 counter drop; }}; }}"
            )
            run("ip", "netns", "exec", space, "nft", rules)

    def lost(self):
        """The number of dropped packets."""
        dropped = 0
        for space in SPACES:
            command = ["ip", "netns", "exec", space, "nft", "-j", "list", "ruleset"]
            rules = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
            for entry in rules["nftables"]:
                for part in entry.get("rule", {}).get("expr", []):
                    dropped += part.get("counter", {}).get("packets", 0)
        return dropped


def run(*command):
    subprocess.run(command, check=True)


def undisturbed(options):
    """The run, the time until its first step, and the time of its steps, in seconds."""
    case = on_one_machine(options, "undisturbed")
    seen = {}

    def tick():
        if "start" not in seen and all(case.processes("a", rank) for rank in (0, 1)):
            seen["start"] = time.monotonic()
        if "step" not in seen and case.step() > 0:
            seen["step"] = time.monotonic()

    case.wait(tick)
    return case, seen["step"] - seen["start"], time.monotonic() - seen["step"]


def kills(options, starting, training):
    """Kills one of the ranks repeatedly, at random moments: one in four times while they start, otherwise after
    at least one step since the last start."""
    case = on_one_machine(options, "kills")
    dice = random.Random(options.seed)
    done, now = [], {"ranks": None}

    def tick():
        if len(done) == options.kills:
            return
        ranks = {rank: case.processes("a", rank) for rank in (0, 1)}
        if not all(ranks.values()):
            return
        step = case.step()
        if ranks != now["ranks"]:
            early = dice.random() < 0.25
            # So that the run is long enough for all kills.
            delay = dice.uniform(0, starting if early else 1.4 * training / options.kills)
            now.update(ranks=ranks, began=time.monotonic(), delay=delay, least=step)
            now["until"] = now["began"] + delay if early else None
        now["least"] = min(now["least"], step)
        if now["until"] is None and step > now["least"]:
            now["until"] = time.monotonic() + now["delay"]
        if now["until"] is None or time.monotonic() < now["until"]:
            return
        rank = dice.randrange(2)
        for pid in ranks[rank]:
            kill(pid, signal.SIGKILL)
        after = round(time.monotonic() - now["began"], 2)
        done.append({"rank": rank, "seconds_after_start": after, "at_step": step})
        print(f"  killed rank {rank} {after} s after its start, step {step}", file=sys.stderr)
        now["ranks"] = None
        while set(case.processes("a", rank)) & set(ranks[rank]):
            time.sleep(0.01)

    case.wait(tick)
    return case, {"kills": done, "kills_wanted": options.kills}


def once(case, step, act):
    """Acts when the run has come to `step`, and then again when what it returned says so."""
    plan = {"next": act, "at": None}

    def tick():
        if plan["next"] is None:
            return
        if plan["at"] is None and case.step() < step:
            return
        if plan["at"] is not None and time.monotonic() < plan["at"]:
            return
        later = plan["next"]()
        plan["next"], plan["at"] = (None, None) if later is None else (later[1], time.monotonic() + later[0])

    case.wait(tick)
    if plan["next"] is not None:
        raise RuntimeError(f"{case.name}: the run ended before the fault")


def stopped_rank(options, cable):
    case = on_two_machines(options, "stopped-rank")

    def stop():
        pids = case.processes("b", 1)
        for pid in pids:
            kill(pid, signal.SIGSTOP)
        return 60, lambda: [kill(pid, signal.SIGCONT) for pid in pids] and None

    once(case, case.steps // 3, stop)
    return case, {"stopped_seconds": 60}


def lossy_link(options, cable):
    cable.lose(100)
    case = on_two_machines(options, "lossy-link")
    case.wait()
    return case, {"packets_lost": cable.lost(), "of": "one in a hundred, in both directions, by nft"}


def cut_link(options, cable, name, seconds, timeout):
    case = on_two_machines(options, name, timeout=timeout)

    def out():
        cable.set("down")
        return seconds, lambda: cable.set("up")

    once(case, case.steps // 3, out)
    return case, {"cut_seconds": seconds, "rank_timeout": timeout}


def reboot(options, cable):
    case = on_two_machines(options, "reboot")
    agent = case.agents[1]

    def off():
        agent.switch_off()
        return 10, agent.start

    once(case, case.steps // 3, off)
    return case, {"off_seconds": 10}


def left_alone(options, cable):
    """The second machine is switched off permanently, and the first one continues without it."""
    case = on_two_machines(options, "left-alone", machines="1:2")
    agent = case.agents[1]

    def off():
        agent.switch_off()
        case.agents.remove(agent)

    once(case, case.steps // 3, off)
    log = (case.folder / "a" / "log.txt").read_text(errors="replace")
    return case, {"goes_on_with_one_rank": "ranks 2 → 1" in log}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trainer", type=Path, required=True, help="the program surefoot-trainer")
    parser.add_argument("--out", type=Path, required=True, help="output file")
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--save", type=int, default=10, help="steps between two checkpoints")
    parser.add_argument("--seed", type=int, default=19)
    parser.add_argument("--only", action="append", help="run only this case; may be repeated")
    parser.add_argument("--keep", action="store_true", help="keep the folder of the runs")
    options = parser.parse_args()
    options.trainer = options.trainer.resolve()
    options.scratch = Path(tempfile.mkdtemp(prefix="surefoot-faults-"))
    text = "".join(f"{number} bottles of ale on the wall\n" for number in range(4000))
    (options.scratch / "text.txt").write_text(text)

    print("undisturbed", file=sys.stderr)
    whole, starting, training = undisturbed(options)
    expected = whole.result()
    cases = {
        "kills": lambda _: kills(options, starting, training),
        "stopped-rank": lambda cable: stopped_rank(options, cable),
        "lossy-link": lambda cable: lossy_link(options, cable),
        "cut-link-short": lambda cable: cut_link(options, cable, "cut-link-short", 5, 600),
        "cut-link-long": lambda cable: cut_link(options, cable, "cut-link-long", 60, 20),
        "reboot": lambda cable: reboot(options, cable),
        "left-alone": lambda cable: left_alone(options, cable),
    }
    rows, failed = [], False
    for name, case in cases.items():
        if options.only and name not in options.only:
            continue
        print(name, file=sys.stderr)
        began = time.monotonic()
        with Cable() as cable:
            row = {"case": name}
            try:
                ended, told = case(cable)
                row |= told
                row["restarts_that_resumed"] = ended.restarts()
                row["checkpoints_lost"] = ended.checkpoints_lost()
                # Two ranks with the same data each would have learned something else than one.
                if name != "left-alone":
                    row["weights_and_moments_equal"] = ended.result() == expected
                elif row["restarts_that_resumed"] and ended.result():
                    row["complete"] = row["goes_on_with_one_rank"]
            except (RuntimeError, OSError, subprocess.CalledProcessError) as error:
                row["error"] = str(error)
            row["seconds"] = round(time.monotonic() - began, 1)
        is_fine = row.get("weights_and_moments_equal", row.get("complete")) is True
        is_fine = is_fine and row.get("checkpoints_lost") == 0
        if "kills_wanted" in row:
            is_fine = is_fine and len(row["kills"]) == row["kills_wanted"]
        failed |= not is_fine
        rows.append(row)
        print(f"  {json.dumps(row)}", file=sys.stderr)

    import torch

    report = {
        "evidence_level": "CPU, real",
        "torch": torch.__version__,
        "steps": options.steps,
        "save_steps": options.save,
        "seed": options.seed,
        "seconds_to_the_first_step": round(starting, 1),
        "seconds_of_all_steps": round(training, 1),
        "cases": rows,
    }
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(report, indent=2) + "\n")
    for row in rows:
        told = "complete" if row.get("complete") else "equal" if row.get("weights_and_moments_equal") else "NOT EQUAL"
        if row.get("checkpoints_lost") != 0:
            told = "A CHECKPOINT WAS LOST"
        print(f"{row['case']:<16} {row.get('error', told)}, {row['seconds']} s")
    if failed or options.keep:
        print(f"the runs are in {options.scratch}")
    else:
        shutil.rmtree(options.scratch)
    sys.exit(failed)


if __name__ == "__main__":
    main()
