// A program whose tensors are freed by a static destructor, after its GPU runtime has been shut down.
// argv: path of libhip_alloc.so.

#include "hip_runtime.h"
#include "library.h"

#include <cstdio>
#include <pthread.h>
#include <unistd.h>
#include <vector>

static Library library;
static std::vector<void *> live;
static std::atomic<int> threads{0};
static const hip_alloc_pool_id pool{1, 2};

// Symbols exported by the program take precedence over the C library.
extern "C" int pthread_create(pthread_t *thread, const pthread_attr_t *how, void *(*start)(void *), void *with) noexcept {
  static const auto real = reinterpret_cast<decltype(&pthread_create)>(dlsym(RTLD_NEXT, "pthread_create"));
  threads++;
  return real(thread, how, start, with);
}

struct Late {
  ~Late() {
    hip::calls = 0;
    threads = 0;
    for (void *memory : live) {
      library.free(memory, 0, 0, nullptr);
    }
    function(library, hip_alloc_release_pool, "hip_alloc_release_pool")(0, pool);
    for (int number = 0; number < 40; number++) {
      library.free(library.malloc(20 << 20, HIP_ALLOC_HOST, nullptr), 0, HIP_ALLOC_HOST, nullptr);
    }
    library.trim(0, 0);
    struct hip_alloc_stats stats = {};
    library.stats(HIP_ALLOC_HOST, &stats, sizeof stats);
    std::printf("%d calls, %d threads, %llu bytes of the host live\n", hip::calls.load(), threads.load(),
                (unsigned long long)stats.live_bytes);
  }
};
// Created before the library registers its exit handlers, so destroyed after they run.
static Late late;

int main(int, char **arguments) {
  alarm(600);
  library = open_library(arguments[1]);
  for (size_t number = 1; number <= 40; number++) {
    live.push_back(library.malloc(number << 20, 0, nullptr));
  }
  function(library, hip_alloc_retain_pool, "hip_alloc_retain_pool")(0, pool, 0);
  return 0;
}
