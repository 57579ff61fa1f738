"""Loads the simulated runtimes when Python starts, by their paths, as AMD's wheels do before `torch`."""

import ctypes
import os

runtimes = [ctypes.CDLL(path) for path in os.environ["SIMULATED_RUNTIMES"].split(os.pathsep) if path]
