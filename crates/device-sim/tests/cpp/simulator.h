// Access to the simulator for a program that is not linked with it: it is loaded by path, and
// its functions are looked up by name.

#pragma once

#include <cstdio>
#include <dlfcn.h>
#include <string>
#include <unistd.h>

static void *library;
static std::string prefix;

// Loads the library and stores "hip" or "cuda". Exits with code 3 on failure.
static void open_simulator(const char *path, const char *family) {
  library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (!library) {
    std::printf("library: %s\n", dlerror());
    std::fflush(stdout);
    _exit(3);
  }
  prefix = family;
}

static void *find(const std::string &name) {
  void *function = dlsym(library, name.c_str());
  if (!function) {
    std::printf("no %s\n", name.c_str());
    std::fflush(stdout);
    _exit(3);
  }
  return function;
}

template <typename... Arguments> static int call_as(const std::string &name, Arguments... arguments) {
  return reinterpret_cast<int (*)(Arguments...)>(find(name))(arguments...);
}

// A function that both runtimes have, with their own prefix.
template <typename... Arguments> static int call(const std::string &name, Arguments... arguments) {
  return call_as(prefix + name, arguments...);
}
