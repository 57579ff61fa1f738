"""A Wine prefix, in which tests run programs for Windows, and a compiler for them."""

import os
import shutil
import subprocess
import time
from pathlib import Path

COMPILER = "x86_64-w64-mingw32-gcc"
WINE = next((path for path in (shutil.which("wine64"), "/usr/lib/wine/wine64", shutil.which("wine")) if path and Path(path).exists()), None)

# Older versions of Wine lack this library, from which Rust gets random numbers.
RANDOM = """
#include <windows.h>
BOOLEAN NTAPI SystemFunction036(PVOID buffer, ULONG length);
__declspec(dllexport) BOOL WINAPI ProcessPrng(PBYTE data, SIZE_T length) { return SystemFunction036(data, (ULONG)length); }
"""

# Keeps a prefix in use.
STAY = """
#include <windows.h>
int main(void) { Sleep(INFINITE); }
"""


class Wine:
    """A new prefix in `folder`; programs run in its `C:\\\\surefoot`."""

    def __init__(self, folder, **variables):
        assert WINE, "the tests of programs for Windows need wine"
        self.folder = folder
        self.wine = str(WINE)
        self.variables = {
            **{name: value for name, value in os.environ.items() if not name.startswith(("HIP", "CUDA", "VIRTUAL_ENV", "CONDA", "SUREFOOT", "PYTHON"))},
            "WINEPREFIX": str(folder / "prefix"),
            "WINEDEBUG": "-all",
            # Without the components that would install additional software.
            "WINEDLLOVERRIDES": "mscoree,mshtml=",
            "NO_COLOR": "1",
            **variables,
        }
        # The services that it starts keep their inherited streams open.
        self.closed = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)
        subprocess.run([self.wine, "wineboot", "--init"], env=self.variables, timeout=600, **self.closed)
        self.place = folder / "prefix/drive_c/surefoot"
        self.place.mkdir()
        self.system = folder / "prefix/drive_c/windows/system32"
        self.compile(RANDOM, self.system / "bcryptprimitives.dll", "-shared", "-ladvapi32")

    def compile(self, source, target, *options):
        """Compiles a text or a file."""
        file = source
        if not isinstance(source, Path):
            file = self.folder / "source.c"
            file.write_text(source)
        # Libraries follow the objects that need them.
        subprocess.run([COMPILER, "-O1", str(file), "-o", str(target), *options], check=True)

    def stay(self):
        """Keeps the prefix active: others start immediately, and Wine, which writes its own display adapter to the registry at
        each start, keeps ours."""
        self.compile(STAY, self.place / "stay.exe")
        self.session = subprocess.Popen(self.command("stay.exe"), env=self.variables, cwd=self.place, **self.closed)
        # Returns when the services run: one that `run` starts would keep its pipes open.
        subprocess.run(self.command("cmd", "/c", "exit"), env=self.variables, cwd=self.place, timeout=600, **self.closed)

    def command(self, *words):
        return [self.wine, *words]

    def run(self, *words, text=None, timeout=120, **variables):
        """Runs a program of Windows to its end. Its streams are pipes: Python for Windows does not start on others of Wine."""
        process = subprocess.run(
            self.command(*words), env={**self.variables, **variables}, cwd=self.place, input=text or b"", capture_output=True, timeout=timeout
        )
        process.stdout = process.stdout.decode("utf-8", "replace").replace("\r\n", "\n")
        process.stderr = process.stderr.decode("utf-8", "replace").replace("\r\n", "\n")
        return process

    def remove(self):
        """Ends what runs in the prefix, and removes its seven hundred megabytes."""
        self.run("wineboot", "--kill")
        self.session.wait(timeout=60)
        shutil.rmtree(self.folder / "prefix", ignore_errors=True)


# Microsoft's own, which `cargo xtask windows --torch` puts beside python.exe; Wine's lack functions.
RUNTIMES = "msvcp140,msvcp140_1,msvcp140_2,msvcp140_atomic_wait,vcruntime140,vcruntime140_1,concrt140,vcomp140"


def wait_until(happens, seconds=60):
    end = time.monotonic() + seconds
    while not happens():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.1)


def with_python(folder, python, **variables):
    """The same with the Python for Windows in the folder `python`, and Microsoft's runtime."""
    # OpenMP asks Wine for the groups of processors, which it does not know; and a crash must not wait for a debugger.
    system = Wine(
        folder,
        WINEDLLOVERRIDES=f"mscoree,mshtml=;winedbg.exe=d;dxgi,{RUNTIMES}=n,b",
        KMP_AFFINITY="disabled",
        WINEPATH=on_drive(python),
        **variables,
    )
    system.stay()
    system.python = on_drive(python / "python.exe")
    assert system.run("reg", "add", r"HKCU\Software\Wine", "/v", "Version", "/d", "win10", "/f").returncode == 0
    return system


def on_drive(path):
    """A path of Linux as Wine takes it."""
    return "Z:" + str(path.resolve()).replace("/", "\\")
