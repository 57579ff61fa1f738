// A program with a HIP runtime of its own, which starts a helper (forks) in each call that
// takes or gives back memory. argv: path of libhip_alloc.so, which finds this runtime in
// the global scope. Ends only if no fork waits for a lock that its own thread has.

#include "library.h"

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <sys/wait.h>
#include <unistd.h>

static int helpers = 0;

static void start_a_helper() {
  pid_t pid = fork();
  if (pid == 0) {
    _exit(0); // what would run another program
  }
  int status = 1;
  waitpid(pid, &status, 0);
  helpers += status == 0;
}

extern "C" {
uint32_t hipGetDeviceCount(int *count) { return *count = 1, 0; }
uint32_t hipGetDevice(int *device) { return *device = 0, 0; }
uint32_t hipSetDevice(int) { return 0; }
uint32_t hipMalloc(void **memory, size_t bytes) {
  start_a_helper();
  *memory = std::aligned_alloc(4096, bytes);
  return 0;
}
uint32_t hipFree(void *memory) {
  start_a_helper();
  std::free(memory);
  return 0;
}
uint32_t hipMemGetInfo(size_t *free, size_t *total) {
  *free = *total = size_t{1} << 30;
  return 0;
}
uint32_t hipStreamQuery(void *) { return 0; }
uint32_t hipEventCreateWithFlags(void **event, uint32_t) { return *event = nullptr, 0; }
uint32_t hipEventRecord(void *, void *) { return 0; }
uint32_t hipEventQuery(void *) { return 0; }
uint32_t hipEventSynchronize(void *) { return 0; }
uint32_t hipEventDestroy(void *) { return 0; }
uint32_t hipDeviceSynchronize() { return 0; }
uint32_t hipDeviceGetAttribute(int *value, int, int) { return *value = 0, 0; }
uint32_t hipGetLastError() { return 0; }
const char *hipGetErrorName(uint32_t) { return "an error"; }
}

int main(int, char **arguments) {
  alarm(600); // a fork that waits for its own thread would wait for good
  const Library library = open_library(arguments[1]);
  for (int round = 0; round < 3; round++) {
    library.free(library.malloc(8 << 20, 0, nullptr), 8 << 20, 0, nullptr);
  }
  // The locks are taken again around a fork of the program's own.
  int before = helpers;
  start_a_helper();
  std::printf("%s, %s\n", before > 0 ? "helpers were started" : "no helper", helpers > before ? "and one more" : "not one more");
  return 0;
}
