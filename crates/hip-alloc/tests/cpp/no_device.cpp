// A C++ program on a machine whose runtime sees no GPU. argv: path of
// libhip_alloc.so. Prints the message of the exception, then
// the code of a memory query.

#include "library.h"

#include <cstdio>
#include <stdexcept>

int main(int, char **arguments) {
  const Library library = open_library(arguments[1]);
  try {
    library.malloc(1 << 20, 0, nullptr);
    std::printf("nothing was thrown\n");
  } catch (const std::runtime_error &error) {
    std::printf("%s\n", error.what());
  }
  size_t free = 0, total = 0;
  std::printf("code %d\n", library.mem_info(0, &free, &total));
  // The host does not depend on any runtime.
  std::printf("host %d\n", library.malloc(1 << 20, HIP_ALLOC_HOST, nullptr) != nullptr);
  return 0;
}
