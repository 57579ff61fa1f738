// A C++ program that uses libhip_alloc.so as PyTorch would: loaded with dlopen, with
// only our header. argv: path of the library [path of libc10.so]. Prints what it saw.

#include "library.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <cxxabi.h>
#include <dlfcn.h>
#include <exception>
#include <new>
#include <typeinfo>

int main(int count, char **arguments) {
  if (count > 2 && !dlopen(arguments[2], RTLD_NOW | RTLD_LOCAL)) {
    std::printf("libc10: %s\n", dlerror());
    return 3;
  }
  const Library library = open_library(arguments[1]);

  try {
    void *memory = library.malloc(1 << 20, HIP_ALLOC_HOST, nullptr);
    std::memset(memory, 7, 1 << 20);
    library.free(memory, 1 << 20, HIP_ALLOC_HOST, nullptr);
  } catch (const std::exception &error) {
    std::printf("no memory: %s\n", error.what());
    setenv("HIP_ALLOC_CONF", "", 1);
  }

  try {
    library.malloc(size_t{1} << 60, HIP_ALLOC_HOST, nullptr);
    std::printf("nothing was thrown\n");
  } catch (const std::bad_alloc &) {
    std::printf("caught std::bad_alloc\n");
  } catch (const std::exception &error) {
    int status = 0;
    char *name = abi::__cxa_demangle(typeid(error).name(), nullptr, nullptr, &status);
    std::printf("caught %s: %s\n", name, error.what());
  }

  struct hip_alloc_stats stats = {};
  int code = library.stats(HIP_ALLOC_HOST, &stats, sizeof stats);
  std::printf("code %d live %llu refused %llu frees %llu\n", code,
              static_cast<unsigned long long>(stats.live_bytes),
              static_cast<unsigned long long>(stats.out_of_memory),
              static_cast<unsigned long long>(stats.frees));
  return 0;
}
