// A program in which no thread can be started, as if the limit of processes is reached.
// argv: path of the library. It frees so much that memory is kept between its rounds, for which the
// library needs a thread.

#include "library.h"

#include <cerrno>
#include <cstdio>
#include <pthread.h>
#include <unistd.h>
#include <vector>

static int refused = 0;

// Symbols exported by the program take precedence over the C library.
extern "C" int pthread_create(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *) noexcept {
  refused++;
  return EAGAIN;
}

int main(int, char **arguments) {
  alarm(600); // ends a deadlock of a thread on itself
  const Library library = open_library(arguments[1]);
  for (int round = 0; round < 20; round++) {
    std::vector<void *> live;
    for (size_t number = 1; number <= 40; number++) {
      live.push_back(library.malloc(number << 20, HIP_ALLOC_HOST, nullptr));
    }
    for (void *memory : live) {
      library.free(memory, 0, HIP_ALLOC_HOST, nullptr);
    }
  }
  struct hip_alloc_stats stats = {};
  library.stats(HIP_ALLOC_HOST, &stats, sizeof stats);
  std::printf("%d refused, %llu bytes live, %s\n", refused, (unsigned long long)stats.live_bytes,
              stats.held_bytes < (400u << 20) ? "little kept" : "much kept");
  return 0;
}
