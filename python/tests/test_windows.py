"""The program for Windows, under Wine: `--windows-program` is its path.

Wine's registry is given display adapters, and the programs that a Windows of this kind has (`hipInfo.exe`, a
training that starts others) are compiled here. So what is tested is what Windows is asked and how it is read, and
not what a driver of AMD answers.
"""

import json
import os
import pty
import re
import select
import shutil
import signal
import subprocess
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from wine import Wine, wait_until

# Prints the text file next to it, and fails if that contains an error.
HIPINFO = """
#include <stdio.h>
#include <string.h>
#include <windows.h>
int main(void) {
    char path[4096], text[65536];
    GetModuleFileNameA(NULL, path, sizeof path);
    strcpy(strrchr(path, '.'), ".txt");
    FILE *file = fopen(path, "r");
    size_t length = file ? fread(text, 1, sizeof text - 1, file) : 0;
    text[length] = 0;
    fputs(text, stdout);
    return strstr(text, "error") != NULL;
}
"""

# `exit CODE`; `crash`; `child FILE`: writes its number into the file and waits; `parent FILE`: starts a `child` and
# waits; `keys`: has its console press Ctrl-C, and ends with 9 when it comes.
TRAINING = """
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <windows.h>
static BOOL WINAPI pressed(DWORD event) {
    if (event != CTRL_C_EVENT) return FALSE;
    puts("saving");
    fflush(stdout);
    ExitProcess(9);
}
int main(int count, char **words) {
    if (!strcmp(words[1], "exit")) return (int)strtoul(words[2], NULL, 0);
    if (!strcmp(words[1], "crash")) {
        fputs("RuntimeError: HIP error: invalid device function\\n", stderr);
        fflush(stderr);
        ExitProcess(0xC0000005);
    }
    if (!strcmp(words[1], "child")) {
        FILE *file = fopen(words[2], "w");
        fprintf(file, "%lu", GetCurrentProcessId());
        fclose(file);
        Sleep(600000);
    }
    if (!strcmp(words[1], "parent")) {
        char line[4096];
        STARTUPINFOA start = {sizeof start};
        PROCESS_INFORMATION process;
        snprintf(line, sizeof line, "\\"%s\\" child \\"%s\\"", words[0], words[2]);
        if (!CreateProcessA(NULL, line, NULL, NULL, FALSE, 0, NULL, NULL, &start, &process)) return 1;
        WaitForSingleObject(process.hProcess, INFINITE);
    }
    if (!strcmp(words[1], "keys")) {
        SetConsoleCtrlHandler(pressed, TRUE);
        // To all programs of this console, as the key does.
        if (!GenerateConsoleCtrlEvent(CTRL_C_EVENT, 0)) return 3;
        Sleep(60000);
    }
    return 0;
}
"""

CLASS = r"HKEY_LOCAL_MACHINE\SYSTEM\CurrentControlSet\Control\Class\{4d36e968-e325-11ce-bfc1-08002be10318}"
REGISTRY = rf"""Windows Registry Editor Version 5.00

[HKEY_LOCAL_MACHINE\SOFTWARE\Microsoft\Windows NT\CurrentVersion]
"ProductName"="Windows 10 Pro"
"DisplayVersion"="24H2"
"CurrentBuildNumber"="26100"
"UBR"=dword:0000090a
"RegisteredOwner"="Erika Mustermann"

[{CLASS}\0000]
"DriverDesc"="AMD Radeon(TM) Graphics"
"ProviderName"="Advanced Micro Devices, Inc."
"DriverVersion"="32.0.12033.1030"
"RadeonSoftwareVersion"="24.12.1"
"MatchingDeviceId"="PCI\\VEN_1002&DEV_164E"
"HardwareInformation.qwMemorySize"=hex(b):00,00,00,20,00,00,00,00

[{CLASS}\0001]
"DriverDesc"="AMD Radeon RX 7900 XTX"
"ProviderName"="Advanced Micro Devices, Inc."
"DriverVersion"="32.0.12033.1030"
"RadeonSoftwareVersion"="24.12.1"
"MatchingDeviceId"="PCI\\VEN_1002&DEV_744C&REV_C8"
"HardwareInformation.qwMemorySize"=hex(b):00,00,00,ff,05,00,00,00
"""

GPUS = """--------------------------------------------------------------------------------
device#                           0
Name:                             AMD Radeon(TM) Graphics
pciBusID:                         17
multiProcessorCount:              1
totalGlobalMem:                   15.92 GB
gcnArchName:                      gfx1036
isIntegrated:                     1
memInfo.free:                     15.77 GB (99%)
--------------------------------------------------------------------------------
device#                           1
Name:                             AMD Radeon RX 7900 XTX
pciBusID:                         3
multiProcessorCount:              48
totalGlobalMem:                   23.98 GB
gcnArchName:                      gfx1100
isIntegrated:                     0
memInfo.free:                     23.84 GB (99%)
"""

TRACE = "s\na 1 209715200\na 2 1000000\nf 1\na 3 52428800\nf 3\nf 2\ns\na 1 2147483648\nf 1\n"
MESSAGE = "RuntimeError: HIP error: invalid device function\r\n"


class Windows(Wine):
    """A Wine prefix with the program, on a machine with two GPUs."""

    def __init__(self, program, folder):
        super().__init__(folder)
        shutil.copy(program, self.place / "surefoot.exe")
        self.compile(TRAINING, self.place / "training.exe")
        self.stay()
        self.environment = self.python_environment(self.place / "venv")
        (self.place / "machine.reg").write_text(REGISTRY, encoding="utf-16")
        assert self.surefoot("--version").returncode == 0
        imported = self.run("reg", "import", "machine.reg")
        assert imported.returncode == 0, imported
        runtime = folder / "prefix/drive_c/windows/system32/amdhip64_7.dll"
        runtime.write_text("the driver's")

    def python_environment(self, prefix):
        """AMD's wheels as installed in a virtual environment on Windows."""
        site = prefix / "Lib/site-packages"
        core = site / "_rocm_sdk_core/bin"
        for folder in (
            prefix / "Scripts",
            core,
            site / "torch",
            site / "torch-2.13.0+rocm7.14.0.dist-info",
            site / "amd_torch_device_gfx1100-2.13.0.dist-info",
        ):
            folder.mkdir(parents=True)
        (prefix / "pyvenv.cfg").touch()
        (prefix / "Scripts/python.exe").touch()
        (site / "torch/version.py").write_text("__version__ = '2.13.0+rocm7.14.0'\ncuda: str = None\nhip: str = '7.14.60850'\n")
        (core / "amdhip64_7.dll").write_text("the wheels'")
        self.compile(HIPINFO, core / "hipInfo.exe")
        self.hipinfo = core / "hipInfo.txt"
        self.hipinfo.write_text(GPUS)
        return r"C:\surefoot\venv"

    def surefoot(self, *words, python=True, **more):
        variables = {"VIRTUAL_ENV": self.environment} if python else {}
        return self.run(r"C:\surefoot\surefoot.exe", *words, **{**variables, **more})

    def json(self, *words, **more):
        process = self.surefoot("--json", *words, **more)
        assert process.stdout, process.stderr
        return json.loads(process.stdout)


@pytest.fixture(scope="module")
def windows(request, tmp_path_factory):
    program = request.config.getoption("--windows-program")
    if not program:
        pytest.skip("no --windows-program: `cargo xtask windows` builds it")
    system = Windows(program, tmp_path_factory.mktemp("windows"))
    yield system
    system.remove()


@pytest.fixture(autouse=True)
def both_gpus(windows):
    yield
    windows.hipinfo.write_text(GPUS)


def ids(report):
    return [finding["id"] for finding in report["findings"]]


def test_a_machine_is_read_from_hipinfo_the_registry_and_the_wheels(windows):
    report = windows.json("doctor")
    machine = report["machine"]
    assert machine["system"] == "windows"
    assert machine["distribution"] == "Windows 11 Pro 24H2 (26100.2314)"
    total = machine["memory"]["total"]
    here = int(next(line for line in open("/proc/meminfo")).split()[1]) * 1024
    assert abs(total - here) < here / 50, (total, here)
    assert [gpu["gfx"] for gpu in report["gpus"]] == ["gfx1036", "gfx1100"]
    card = report["gpus"][1]
    assert card["device_id"] == "0x744c"
    assert card["vram_bytes"] == 0x5FF000000
    assert card["compute_units"] == 96
    assert report["pick"] == 1
    assert machine["python"]["torch"]["version"] == "2.13.0+rocm7.14.0"
    assert machine["python"]["torch"]["architectures"] == ["gfx1100"]
    adapter = machine["windows"]["adapters"][1]
    assert (adapter["driver"], adapter["release"]) == ("32.0.12033.1030", "24.12.1")
    # The Linux driver is not mentioned, and Windows itself is recognised.
    assert set(ids(report)) <= {"hip-runtime-shadowed", "no-page-file", "no-ffmpeg", "igpu-in-front", "igpu-visible"}, ids(report)


def test_for_people_it_is_the_same(windows):
    said = windows.surefoot("doctor").stdout
    assert "AMD Radeon RX 7900 XTX, gfx1100, card" in said
    assert "Windows 11 Pro 24H2 (26100.2314), driver 32.0.12033.1030, Adrenalin 24.12.1" in said
    assert "/dev/" not in said and "sudo" not in said, said


def test_the_drivers_runtime_is_said_to_come_first(windows):
    report = windows.json("doctor")
    finding = next(finding for finding in report["findings"] if finding["id"] == "hip-runtime-shadowed")
    assert r"C:\windows\System32\amdhip64_7.dll".lower() in finding["seen"].lower()
    assert r"C:\surefoot\venv\Lib\site-packages\_rocm_sdk_core\bin\amdhip64_7.dll" in finding["seen"]
    assert "hip-runtime-shadowed" not in ids(windows.json("doctor", python=False))


def test_without_hipinfo_the_registry_stands_in(windows):
    report = windows.json("doctor", python=False)
    assert report["machine"]["windows"]["hipinfo"] == "missing"
    assert "hipinfo-missing" in ids(report)
    assert [gpu["gfx"] for gpu in report["gpus"]] == ["gfx1036", "gfx1100"]


def test_a_hipinfo_that_fails_is_quoted(windows):
    windows.hipinfo.write_text("error: 'no ROCm-capable device is detected'(100) at hipInfo.cpp:220\n")
    process = windows.surefoot("doctor")
    assert process.returncode == 3
    said = " ".join(process.stdout.split())
    assert "no ROCm-capable device is detected" in said, said
    assert "Windows lists AMD Radeon(TM) Graphics, AMD Radeon RX 7900 XTX" in said, said


def test_a_dump_is_the_machine_and_names_nobody(windows):
    dump = windows.surefoot("doctor", "--dump", "-").stdout
    assert "Erika" not in dump
    (windows.place / "dump.txt").write_text(dump)
    live, read = windows.json("doctor"), windows.json("doctor", "--from", "dump.txt")
    for report in (live, read):
        # Free memory changes all the time, and so do the findings about little of it.
        del report["machine"]["memory"]
        report["findings"] = [finding for finding in report["findings"] if finding["check"] != "memory"]
        for gpu in report["gpus"]:
            del gpu["capacity"]
    # Findings about folders are only reported for the local machine.
    live.pop("trainer_libraries", None)
    assert live == read


def test_env_hides_the_integrated_gpu_in_each_shell(windows):
    assert '$env:HIP_VISIBLE_DEVICES = "1"\n' in windows.surefoot("env").stdout
    (windows.place / "variables.bat").write_text(windows.surefoot("env", "--shell", "cmd").stdout + "@echo [%HIP_VISIBLE_DEVICES%]\n")
    said = windows.run("cmd", "/c", "variables.bat")
    assert said.stdout == "[1]\n", said


def test_the_command_gets_the_environment_and_its_exit_code_comes_back(windows):
    process = windows.surefoot("run", "--", "cmd", "/c", "echo [%HIP_VISIBLE_DEVICES%]& exit 7")
    assert process.stdout == "[1]\n", process
    assert process.returncode == 7
    assert "exit code 7" in process.stderr


def test_an_exit_code_of_32_bits_comes_back_whole(windows):
    # Wine returns only the lowest eight bits to Linux, so a Windows shell prints the code.
    words = r"surefoot.exe run -- training.exe crash & echo code=!errorlevel!"
    process = windows.run("cmd", "/v:on", "/c", words, VIRTUAL_ENV=windows.environment)
    assert "code=-1073741819" in process.stdout, process
    assert "exit code 0xC0000005: an access violation" in process.stderr
    assert "[invalid-device-function, likely]" in process.stderr
    assert "RAM available" in process.stderr


def test_a_command_that_is_not_there_is_bad_usage(windows):
    process = windows.surefoot("run", "--", "no-such-command")
    assert process.returncode == 2
    assert "command not found" in process.stderr


def running(windows, word):
    """Lines of Linux's list of processes with this word, of this prefix."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            line = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
            if word in line and str(windows.folder).encode() in (folder / "environ").read_bytes():
                found.append(line)
        except OSError:
            continue
    return found


def test_what_the_command_started_ends_with_us(windows):
    noted = windows.place / "child.txt"
    process = subprocess.Popen(
        windows.command(r"C:\surefoot\surefoot.exe", "run", "--", "training.exe", "parent", "child.txt"),
        env=windows.variables,
        cwd=windows.place,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    wait_until(lambda: noted.exists() and noted.read_text())
    # surefoot, the command, and its child: each has the file name as an argument.
    assert len(running(windows, "child.txt")) == 3
    # As the Task Manager ends it.
    killed = windows.run("taskkill", "/f", "/im", "surefoot.exe")
    assert killed.returncode == 0, killed
    process.wait(timeout=60)
    wait_until(lambda: not running(windows, "child.txt"))


def test_ctrl_c_is_for_the_child_and_its_answer_counts(windows):
    # With all three streams on a terminal, Wine gives the programs a console, which has such events.
    process, terminal = pty.fork()
    if process == 0:
        os.chdir(windows.place)
        command = windows.command(r"C:\surefoot\surefoot.exe", "run", "--", "training.exe", "keys")
        os.execve(command[0], command, {**windows.variables, "TERM": "xterm"})
    printed = ""
    end = time.monotonic() + 100
    try:
        while True:
            assert time.monotonic() < end, printed
            if select.select([terminal], [], [], 1)[0]:
                try:
                    piece = os.read(terminal, 4096)
                except OSError:
                    # All programs have ended.
                    break
                # The console emits cursor movements between the characters.
                printed += re.sub(r"\x1b\[[?0-9;]*[A-Za-z]", "", piece.decode("utf-8", "replace"))
        _, status = os.waitpid(process, 0)
    except BaseException:
        os.kill(process, signal.SIGKILL)
        os.waitpid(process, 0)
        raise
    finally:
        os.close(terminal)
    assert "saving" in printed, printed
    assert os.waitstatus_to_exitcode(status) == 9, printed
    # A program that the user stops needs no explanation.
    assert "the command failed" not in printed


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-8"])
def test_what_powershell_writes_is_read(windows, encoding):
    (windows.place / "log.txt").write_bytes(MESSAGE.encode(encoding))
    assert windows.json("explain", "log.txt")["matches"][0]["id"] == "invalid-device-function"
    (windows.place / "hipinfo.txt").write_bytes(GPUS.replace("\n", "\r\n").encode(encoding))
    report = windows.json("doctor", "--from", "hipinfo.txt")
    assert [gpu["gfx"] for gpu in report["gpus"]] == ["gfx1036", "gfx1100"]


def test_a_log_comes_through_a_pipe(windows):
    said = windows.surefoot("explain", text=MESSAGE.encode("utf-16"))
    assert "[invalid-device-function, likely]" in said.stdout


def test_a_trace_is_replayed(windows):
    (windows.place / "run.trace").write_text(TRACE)
    report = windows.json("replay", "run.trace", "--policy", "keep:off,warmup_mb:0")
    assert report["peak_live_bytes"] == 2147483648
    assert [row["name"] for row in report["allocators"]][0] == "hip-alloc"


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("run", "--alloc", "--", "cmd"), "there is no `hip_alloc.dll` with"),
        (("activate",), "there is no `hip_alloc.dll` with"),
        (("train", "config.yaml"), "`surefoot_trainer.dll` belongs beside it"),
        (("runs", "add", "config.yaml"), "`surefoot_trainer.dll` belongs beside it"),
    ],
)
def test_what_windows_has_not_is_refused_with_its_reason(windows, words, reason):
    (windows.place / "config.yaml").write_text("train:\n  max_steps: 1\n")
    process = windows.surefoot(*words)
    assert process.returncode != 0
    assert reason in process.stderr, process


def test_the_page_shows_runs_and_says_why_it_cannot_start_one(windows):
    run = windows.place / "runs/a"
    run.mkdir(parents=True, exist_ok=True)
    (run / "config.yaml").write_text("train:\n  max_steps: 4\n")
    (run / "metrics.jsonl").write_text('{"kind":"train","step":1,"loss":2.5}\n')
    (run / "summary.json").write_text('{"ending":"completed"}')
    process = subprocess.Popen(
        windows.command(r"C:\surefoot\surefoot.exe", "--json", "ui", "--port", "0"),
        env={**windows.variables, "VIRTUAL_ENV": windows.environment},
        cwd=windows.place,
        stdout=subprocess.PIPE,
    )
    try:
        url = json.loads(process.stdout.readline())["url"]
        address, token = url.split("/#token=")

        def ask(path, body=None):
            headers = {"authorization": f"Bearer {token}", "origin": address, "content-type": "application/json"}
            data = None if body is None else json.dumps(body).encode()
            request = urllib.request.Request(address + path, data=data, headers=headers)
            try:
                with urllib.request.urlopen(request, timeout=60) as answer:
                    return answer.status, answer.read().decode()
            except urllib.error.HTTPError as error:
                return error.code, error.read().decode()

        status, page = ask("/")
        assert status == 200 and "<html" in page
        status, runs = ask("/api/runs")
        assert status == 200
        assert [(run["name"], run["state"], run["latest"]["step"]) for run in json.loads(runs)["runs"]] == [("a", "completed", 1)]
        for path in ("/api/runs/..%5Ca", "/api/runs/NUL", "/api/runs/a::$DATA"):
            assert ask(path)[0] in (400, 404), path
        status, doctor = ask("/api/doctor")
        assert status == 200 and json.loads(doctor)["report"]["machine"]["system"] == "windows"
        status, added = ask("/api/queue", {"config": "train:\n  max_steps: 1\n", "name": "b"})
        assert status == 201, added

        def job():
            return json.loads(ask("/api/queue")[1])["jobs"][0]

        # The worker, a process of its own, starts its check.
        wait_until(lambda: job()["state"] == "ended")
        assert job()["how"] == "refused" and "`surefoot_trainer.dll` belongs beside it" in job()["error"], job()
    finally:
        process.send_signal(signal.SIGKILL)
        windows.run("taskkill", "/f", "/im", "surefoot.exe")
        process.wait(timeout=60)
    assert not (windows.place / "runs/b").exists()
