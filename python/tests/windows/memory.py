"""Prints what hip-alloc says of the memory of the first device; with a number, asks for that many bytes of it first."""

import ctypes
import json
import sys

library = ctypes.CDLL(r"C:\surefoot\hip_alloc.dll")
if sys.argv[1:]:
    library.hip_alloc_malloc.argtypes = [ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p]
    library.hip_alloc_malloc.restype = ctypes.c_void_p
    library.hip_alloc_malloc(int(sys.argv[1]), 0, None)
free, total = ctypes.c_size_t(), ctypes.c_size_t()
code = library.hip_alloc_mem_info(0, ctypes.byref(free), ctypes.byref(total))
print(json.dumps({"code": code, "free": free.value, "total": total.value}))
