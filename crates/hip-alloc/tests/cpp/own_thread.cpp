// A program that computes only on its second device: the library's thread, which releases
// kept memory, never makes the first one current. argv: path of libhip_alloc.so.

#include "hip_runtime.h"
#include "library.h"

#include <cstdio>
#include <unistd.h>
#include <vector>

int main(int, char **arguments) {
  alarm(600);
  const Library library = open_library(arguments[1]);
  hip::current = 1;
  std::vector<void *> live;
  for (size_t number = 1; number <= 40; number++) {
    live.push_back(library.malloc(number << 20, 1, nullptr));
  }
  for (void *memory : live) {
    library.free(memory, 0, 1, nullptr);
  }
  // The rest is released a second after the last request.
  struct hip_alloc_stats stats = {};
  do {
    usleep(10000);
    library.stats(1, &stats, sizeof stats);
  } while (stats.give_backs == 0);
  std::printf("the second: %d, the first: %d\n", hip::made_current[1].load(), hip::made_current[0].load());
  return 0;
}
