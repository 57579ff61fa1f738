"""Lists the names of the cases that may be looked at while rules are written; the others are held out."""

import hashlib
import pathlib

for path in sorted(pathlib.Path(__file__).parent.glob("*.txt")):
    if hashlib.sha256(path.stem.encode()).digest()[0] % 3:
        print(path.stem)
