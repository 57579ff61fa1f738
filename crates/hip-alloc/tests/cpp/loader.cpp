// A thread opens a device, for which libhip_alloc.so calls the loader, and waits for the loader's
// lock. The main thread holds it, in the constructor of a library that forks and then allocates
// memory on the same device. argv: path of libhip_alloc.so, path of the library with the
// constructor. It only terminates if no thread waits for one that waits for the loader.

#include "library.h"

#include <atomic>
#include <cstdio>
#include <cstring>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

static Library library;
static std::atomic<bool> at_the_loader{false}, constructing{false};
static thread_local bool opens = false;

static bool use(int device) {
  auto *memory = static_cast<char *>(library.malloc(100000, device, nullptr));
  std::memset(memory, 1, 100000);
  library.free(memory, 100000, device, nullptr);
  return true;
}

// Symbols exported by the program take precedence over the C library: here the thread that opens a device waits
// until the loader's lock is held.
extern "C" void *dlopen(const char *name, int flags) {
  static const auto real = reinterpret_cast<void *(*)(const char *, int)>(dlsym(RTLD_NEXT, "dlopen"));
  if (opens) {
    at_the_loader = true;
    while (!constructing) {
      usleep(1000);
    }
  }
  return real(name, flags);
}

extern "C" void in_constructor() {
  while (!at_the_loader) {
    usleep(1000);
  }
  constructing = true;
  usleep(100000); // by now the other thread most likely waits for the loader's lock
  pid_t pid = fork();
  if (pid == 0) {
    _exit(use(HIP_ALLOC_HOST) ? 0 : 1);
  }
  int status = 1;
  waitpid(pid, &status, 0);
  std::printf("forked in a constructor: %d\n", status);
  std::printf("allocated in a constructor: %d\n", use(0));
}

int main(int, char **arguments) {
  alarm(600); // ends a deadlock
  library = open_library(arguments[1]);
  use(HIP_ALLOC_HOST);
  std::thread opening([] {
    opens = true;
    use(0);
  });
  void *loaded = dlopen(arguments[2], RTLD_NOW);
  opening.join();
  std::printf("loaded: %d\n", loaded != nullptr);
  return 0;
}
