// A C++ program on a machine whose runtime sees no GPU: what does it hear from
// libhip_alloc.so? argv: path of the library. Prints the message of the exception, then
// the code of a question about memory.

#include "hip_alloc.h"

#include <cstdio>
#include <dlfcn.h>
#include <stdexcept>

int main(int, char **arguments) {
  void *library = dlopen(arguments[1], RTLD_NOW | RTLD_LOCAL);
  if (!library) {
    std::printf("library: %s\n", dlerror());
    return 3;
  }
  auto allocate = reinterpret_cast<decltype(&hip_alloc_malloc)>(dlsym(library, "hip_alloc_malloc"));
  auto ask = reinterpret_cast<decltype(&hip_alloc_mem_info)>(dlsym(library, "hip_alloc_mem_info"));
  try {
    allocate(1 << 20, 0, nullptr);
    std::printf("nothing was thrown\n");
  } catch (const std::runtime_error &error) {
    std::printf("%s\n", error.what());
  }
  size_t free = 0, total = 0;
  std::printf("code %d\n", ask(0, &free, &total));
  // The host does not depend on any runtime.
  std::printf("host %d\n", allocate(1 << 20, HIP_ALLOC_HOST, nullptr) != nullptr);
  return 0;
}
