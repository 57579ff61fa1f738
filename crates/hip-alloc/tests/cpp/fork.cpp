// Forks while other threads are inside libhip_alloc.so, as PyTorch's data loaders do.
// argv: path of the library, then what to do:
//   busy   threads allocate and free all the time;
//   first  threads use a new device each time, so that allocators are being created. Each fork lets
//          them create two more, so that it happens during creation however rarely this program is scheduled.
// Every child checks its copy of the parent's memory, allocates, and exits.

#include "library.h"

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>
#include <vector>

static Library library;

static bool use(int device, size_t bytes) {
  auto *memory = static_cast<unsigned char *>(library.malloc(bytes, device, nullptr));
  std::memset(memory, 0x5a, bytes);
  bool intact = memory[0] == 0x5a && memory[bytes - 1] == 0x5a;
  library.free(memory, bytes, device, nullptr);
  return intact;
}

// Exits the child with 0 if everything worked.
static void child(const unsigned char *kept, size_t kept_bytes, int devices) {
  alarm(600); // ends a deadlock on a thread that the child does not have
  for (size_t place = 0; place < kept_bytes; place++) {
    if (kept[place] != 0x77) {
      _exit(10);
    }
  }
  for (int device = HIP_ALLOC_HOST; device < devices; device++) {
    if (!use(device, 100000)) {
      _exit(11);
    }
    struct hip_alloc_stats stats = {};
    if (library.stats(device, &stats, sizeof stats) != 0) {
      _exit(12);
    }
  }
  // A new thread of the child, while the first one uses the library too.
  std::thread other([] { use(HIP_ALLOC_HOST, 5000); });
  use(HIP_ALLOC_HOST, 5000);
  other.join();
  library.free(const_cast<unsigned char *>(kept), kept_bytes, HIP_ALLOC_HOST, nullptr);
  std::exit(0); // runs the exit handlers of a recording
}

int main(int, char **arguments) {
  library = open_library(arguments[1]);
  const bool first = std::strcmp(arguments[2], "first") == 0;

  const size_t kept_bytes = 3 << 20;
  auto *kept = static_cast<unsigned char *>(library.malloc(kept_bytes, HIP_ALLOC_HOST, nullptr));
  std::memset(kept, 0x77, kept_bytes);

  std::atomic<bool> stop{false};
  std::atomic<int> next{0}, forks{0};
  std::vector<std::thread> threads;
  for (int number = 0; number < 3; number++) {
    threads.emplace_back([&, number] {
      size_t bytes = 1000 * (number + 1);
      while (!stop) {
        int device = first ? next++ : number - 1;
        if (first && device >= 64) {
          return;
        }
        while (first && device >= 2 * forks) {
          std::this_thread::yield();
        }
        use(device, bytes);
        bytes = bytes * 7 % 300007 + 1;
      }
    });
  }
  int wrong = 0;
  for (const int enough = first ? 32 : 150; forks < enough;) {
    std::fflush(stdout);
    forks++;
    pid_t pid = fork();
    if (pid == 0) {
      child(kept, kept_bytes, first ? 64 : 2);
    }
    int status = 0;
    waitpid(pid, &status, 0);
    if (status != 0) {
      wrong++;
      std::printf("child %d ended with %#x\n", forks.load(), status);
    }
  }
  stop = true;
  for (std::thread &thread : threads) {
    thread.join();
  }
  library.free(kept, kept_bytes, HIP_ALLOC_HOST, nullptr);
  for (int device = HIP_ALLOC_HOST; device < (first ? 64 : 2); device++) {
    struct hip_alloc_stats stats = {};
    library.stats(device, &stats, sizeof stats);
    if (stats.live_bytes != 0 || stats.allocations != stats.frees) {
      std::printf("device %d: %llu bytes live\n", device,
                  static_cast<unsigned long long>(stats.live_bytes));
      wrong++;
    }
  }
  std::printf("%s\n", wrong == 0 ? "all children ended well" : "something was wrong");
  return wrong != 0;
}
