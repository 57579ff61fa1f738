// Calls the simulator as its arguments say, and prints the results.
// argv: path of the library, "hip" or "cuda", then one word for each action.

#include "simulator.h"

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <unistd.h>
#include <vector>

static void *device_memory(size_t size) {
  void *memory = nullptr;
  return call("Malloc", &memory, size) == 0 ? memory : nullptr;
}

// Writes eight nines, copies one to eight over them, and prints the result.
static void copy() {
  unsigned char nines[8], numbers[8], back[8] = {};
  std::memset(nines, 9, 8);
  for (int i = 0; i < 8; ++i) {
    numbers[i] = static_cast<unsigned char>(i + 1);
  }
  void *memory = device_memory(8);
  int first = call("Memcpy", memory, static_cast<const void *>(nines), size_t{8}, 1);
  int second = call("Memcpy", memory, static_cast<const void *>(numbers), size_t{8}, 1);
  int third = call("Memcpy", static_cast<void *>(back), static_cast<const void *>(memory), size_t{8}, 2);
  std::printf("copy %d%d%d:", first, second, third);
  for (unsigned char byte : back) {
    std::printf(" %d", byte);
  }
  std::printf("\n");
}

static long resident_mib() {
  long pages = 0, resident = 0;
  FILE *file = std::fopen("/proc/self/statm", "r");
  if (std::fscanf(file, "%ld %ld", &pages, &resident) != 2) {
    resident = 0;
  }
  std::fclose(file);
  return resident * 4096 >> 20;
}

static void act(const std::string &what) {
  const std::string value = what.substr(what.find('=') + 1);
  if (what.rfind("setting=", 0) == 0) {
    auto control = reinterpret_cast<int (*)(const char *)>(dlsym(library, "device_sim_control"));
    if (control(value.c_str()) != 0) {
      _exit(4);
    }
  } else if (what.rfind("malloc=", 0) == 0) {
    void *memory = nullptr;
    std::printf("malloc %d\n", call("Malloc", &memory, size_t{std::strtoull(value.c_str(), nullptr, 10)} << 20));
  } else if (what == "byte") {
    void *memory = nullptr;
    std::printf("byte %d\n", call("Malloc", &memory, size_t{1}));
  } else if (what.rfind("pinned=", 0) == 0) {
    void *memory = nullptr;
    const char *name = prefix == "hip" ? "HostMalloc" : "HostAlloc";
    std::printf("pinned %d\n", call(name, &memory, size_t{std::strtoull(value.c_str(), nullptr, 10)} << 20, 0u));
  } else if (what == "info") {
    size_t free = 0, total = 0;
    call("MemGetInfo", &free, &total);
    std::printf("info %zu %zu\n", free >> 20, total >> 20);
  } else if (what == "count") {
    int count = -1;
    int status = call("GetDeviceCount", &count);
    std::printf(status ? "count error %d\n" : "count %d\n", status ? status : count);
  } else if (what == "copy") {
    copy();
  } else if (what == "large") {
    std::vector<unsigned char> ones(1 << 20, 1);
    void *memory = device_memory(1 << 20);
    call("Memcpy", memory, static_cast<const void *>(ones.data()), ones.size(), 1);
    ones.assign(ones.size(), 7);
    call("Memcpy", static_cast<void *>(ones.data()), static_cast<const void *>(memory), ones.size(), 2);
    std::printf("large %d\n", ones[1000]);
  } else if (what == "timed") {
    auto start = std::chrono::steady_clock::now();
    device_memory(1);
    auto took = std::chrono::steady_clock::now() - start;
    std::printf("took at least 30 ms: %d\n", took >= std::chrono::milliseconds(30));
  } else if (what == "busy") {
    void *event = nullptr, *memory = device_memory(4096);
    call("EventCreateWithFlags", &event, 2u);
    call("MemsetAsync", memory, 0, size_t{4096}, static_cast<void *>(nullptr));
    call("EventRecord", event, static_cast<void *>(nullptr));
    std::printf("busy %d\n", call("EventQuery", event));
  } else if (what == "resident") {
    long before = resident_mib();
    device_memory(64 << 20);
    std::printf("taken at once: %d\n", resident_mib() - before >= 60);
  } else if (what == "calls") {
    auto calls = reinterpret_cast<uint64_t (*)(const char *)>(dlsym(library, "device_sim_calls"));
    std::printf("calls %d\n", static_cast<int>(calls((prefix + "Malloc").c_str())));
  } else {
    std::printf("what is %s?\n", what.c_str());
    _exit(3);
  }
}

int main(int count, char **arguments) {
  open_simulator(arguments[1], arguments[2]);
  for (int i = 3; i < count; ++i) {
    act(arguments[i]);
  }
  std::fflush(stdout);
  _exit(0); // does not wait for a stream that is configured to be busy for an hour
}
