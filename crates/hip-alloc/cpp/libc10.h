// Symbols of whatever libc10 the process has: this library may link neither libtorch nor its
// headers.

#pragma once

#include <dlfcn.h>

// Where c10's symbols are. Up to 2.12, OutOfMemoryError was all in its header, and each library
// that throws or catches it has a copy of its type (which compare equal: by their names).
inline constexpr const char *libraries_of_c10[] = {"libc10.so", "libc10_hip.so", "libc10_cuda.so", "libtorch_python.so"};

// Keeps the library of a symbol loaded: what is found is kept, and called later.
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
  // Python loads extension modules without adding them to the global scope. Looked for each
  // time: they may be loaded later than we first look.
  for (const char *library : libraries_of_c10) {
    void *loaded = dlopen(library, RTLD_NOLOAD | RTLD_LAZY);
    if (!loaded) {
      continue;
    }
    void *symbol = dlsym(loaded, name);
    if (symbol) {
      kept_loaded(symbol);
    }
    // Only our own count of it.
    dlclose(loaded);
    if (symbol) {
      return symbol;
    }
  }
  return nullptr;
}
