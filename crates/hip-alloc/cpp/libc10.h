// Symbols of whatever libc10 the process has: this library may link neither libtorch nor its
// headers.

#pragma once

#include <dlfcn.h>

// Where c10's symbols are. Up to 2.12, OutOfMemoryError was all in its header, and each library
// that throws or catches it has a copy of its type (which compare equal: by their names).
inline constexpr const char *libraries_of_c10[] = {"libc10.so", "libc10_hip.so", "libc10_cuda.so", "libtorch_python.so"};

inline void *find_in_libc10(const char *name) {
  if (void *symbol = dlsym(RTLD_DEFAULT, name)) {
    return symbol;
  }
  // Python loads extension modules without adding them to the global scope. Looked for each
  // time: they may be loaded later than we first look.
  for (const char *library : libraries_of_c10) {
    void *loaded = dlopen(library, RTLD_NOLOAD | RTLD_LAZY);
    if (!loaded) {
      continue;
    }
    void *symbol = dlsym(loaded, name);
    // Only our own count of it: others have it loaded.
    dlclose(loaded);
    if (symbol) {
      return symbol;
    }
  }
  return nullptr;
}
