// Looks up symbols in the libc10 of the process, since this library must not depend on libtorch or its
// headers.

#pragma once

#include <dlfcn.h>

// The libraries with c10's symbols. Up to 2.12, OutOfMemoryError was defined only in a header, and each library
// that throws or catches it has a copy of its type (copies compare equal by name).
inline constexpr const char *libraries_of_c10[] = {"libc10.so", "libc10_hip.so", "libc10_cuda.so", "libtorch_python.so"};

// Keeps the library of a symbol loaded, since the address is stored and called later.
inline void *kept_loaded(void *symbol) {
  Dl_info about;
  if (dladdr(symbol, &about) && about.dli_fname) {
    if (void *library = dlopen(about.dli_fname, RTLD_NOLOAD | RTLD_NODELETE | RTLD_LAZY)) {
      dlclose(library);
    }
  }
  return symbol;
}

inline void *find_in_libc10(const char *name) {
  if (void *symbol = dlsym(RTLD_DEFAULT, name)) {
    return kept_loaded(symbol);
  }
  // Python loads extension modules without adding them to the global scope. They are searched each
  // time, since they may be loaded after the first search.
  for (const char *library : libraries_of_c10) {
    void *loaded = dlopen(library, RTLD_NOLOAD | RTLD_LAZY);
    if (!loaded) {
      continue;
    }
    void *symbol = dlsym(loaded, name);
    if (symbol) {
      kept_loaded(symbol);
    }
    // Only our own reference to it.
    dlclose(loaded);
    if (symbol) {
      return symbol;
    }
  }
  return nullptr;
}
