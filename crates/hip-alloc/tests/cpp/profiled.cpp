// Allocates device memory before libtorch is loaded, and afterwards. argv: path of
// libhip_alloc.so, path of the library that replaces libtorch.

#include "library.h"

#include <cstdio>

static void use(const Library &library) {
  for (int round = 0; round < 2000; round++) {
    library.free(library.malloc(1000, 0, nullptr), 0, 0, nullptr);
  }
}

int main(int, char **arguments) {
  const Library library = open_library(arguments[1]);
  use(library);
  void *torch = dlopen(arguments[2], RTLD_NOW | RTLD_GLOBAL);
  use(library);
  auto *reported = static_cast<int *>(dlsym(torch, "reported"));
  int before = *reported;
  dlclose(torch); // functions found there are still called
  use(library);
  std::printf("reported: %d, and all of the last: %d\n", before > 0, *reported - before);
  return 0;
}
