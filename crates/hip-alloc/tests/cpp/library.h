// Access to libhip_alloc.so for a program that is not linked with it: it is loaded by path, and
// its functions are looked up by name.

#pragma once

#include "hip_alloc.h"

#include <cstdio>
#include <cstdlib>
#include <dlfcn.h>
#include <type_traits>

struct Library {
  void *handle;
  decltype(&hip_alloc_malloc) malloc;
  decltype(&hip_alloc_free) free;
  decltype(&hip_alloc_record_stream) record_stream;
  decltype(&hip_alloc_mem_info) mem_info;
  decltype(&hip_alloc_stats) stats;
  decltype(&hip_alloc_trim) trim;
  decltype(&hip_alloc_set_memory_fraction) set_memory_fraction;
  decltype(&hip_alloc_snapshot) snapshot;
};

// Exits with code 3 if something is missing.
inline Library open_library(const char *path) {
  Library library = {};
  library.handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (!library.handle) {
    std::printf("library: %s\n", dlerror());
    std::exit(3);
  }
  auto find = [&](auto &function, const char *name) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(library.handle, name));
    if (!function) {
      std::printf("function: %s\n", dlerror());
      std::exit(3);
    }
  };
  find(library.malloc, "hip_alloc_malloc");
  find(library.free, "hip_alloc_free");
  find(library.record_stream, "hip_alloc_record_stream");
  find(library.mem_info, "hip_alloc_mem_info");
  find(library.stats, "hip_alloc_stats");
  find(library.trim, "hip_alloc_trim");
  find(library.set_memory_fraction, "hip_alloc_set_memory_fraction");
  find(library.snapshot, "hip_alloc_snapshot");
  return library;
}

// An optional function of the library.
template <typename Function> Function *function(const Library &library, Function &, const char *name) {
  return reinterpret_cast<Function *>(dlsym(library.handle, name));
}
