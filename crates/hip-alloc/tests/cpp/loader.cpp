// A thread opens a device, for which libhip_alloc.so calls the loader, and waits for the loader's
// lock; or it frees so much that libhip_alloc.so starts a thread, before which Rust registers a destructor
// with the loader. The main thread holds the lock, in the constructor of a library that forks and then
// allocates memory on the same device. argv: path of libhip_alloc.so, path of the library with the constructor, "opens" or "keeps".
// It only terminates if no thread waits for one that waits for the loader.

#include "library.h"

#include <atomic>
#include <cstdio>
#include <cstring>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>
#include <vector>

static Library library;
static std::atomic<bool> at_the_loader{false}, constructing{false};
static thread_local bool opens = false, keeps = false;

static bool use(int device) {
  auto *memory = static_cast<char *>(library.malloc(100000, device, nullptr));
  std::memset(memory, 1, 100000);
  library.free(memory, 100000, device, nullptr);
  return true;
}

static void wait_for_the_constructor() {
  at_the_loader = true;
  while (!constructing) {
    usleep(1000);
  }
}

// Symbols exported by the program take precedence over the C library: here the thread that opens a device, or for which
// another is started, waits until the loader's lock is held.
extern "C" void *dlopen(const char *name, int flags) {
  static const auto real = reinterpret_cast<void *(*)(const char *, int)>(dlsym(RTLD_NEXT, "dlopen"));
  if (opens) {
    wait_for_the_constructor();
  }
  return real(name, flags);
}

extern "C" int __cxa_thread_atexit_impl(void (*run)(void *), void *object, void *library) noexcept {
  if (keeps) {
    wait_for_the_constructor();
  }
  using Register = int (*)(void (*)(void *), void *, void *);
  const auto real = reinterpret_cast<Register>(dlsym(RTLD_NEXT, "__cxa_thread_atexit_impl")); // waits for the loader's lock
  return real(run, object, library);
}

static void keep_memory() {
  std::vector<void *> live;
  for (size_t number = 1; number <= 40; number++) {
    live.push_back(library.malloc(number << 20, HIP_ALLOC_HOST, nullptr));
  }
  for (void *memory : live) {
    library.free(memory, 0, HIP_ALLOC_HOST, nullptr);
  }
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
  const bool of_opening = std::strcmp(arguments[3], "opens") == 0;
  std::thread other([of_opening] {
    (of_opening ? opens : keeps) = true;
    of_opening ? (void)use(0) : keep_memory();
  });
  void *loaded = dlopen(arguments[2], RTLD_NOW);
  other.join();
  std::printf("loaded: %d\n", loaded != nullptr);
  return 0;
}
