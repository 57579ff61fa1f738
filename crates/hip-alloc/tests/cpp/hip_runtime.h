// A HIP runtime in the program itself, which libhip_alloc.so finds in the global scope. It has two
// devices whose memory is host memory, and its work takes no time. It counts calls, and
// detects calls that would invalidate a capture.

#pragma once

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <thread>

namespace hip {

// Calls of all functions except those that return error names.
inline std::atomic<int> calls{0};
// Whether all streams are being captured.
inline std::atomic<bool> captures{false};
// Calls that invalidated the capture.
inline std::atomic<int> ended{0};
// Whether streams are busy and events not reached, every other time.
inline std::atomic<bool> busy{false};
// Number of calls by threads other than the first that set a current device, by device.
inline std::atomic<int> made_current[2] = {0, 0};
inline const std::thread::id first_thread = std::this_thread::get_id();
// Called in every function.
inline void (*in_call)() = nullptr;
inline thread_local int current = 0;
// The capture mode of this thread: 0 is global, 2 relaxed.
inline thread_local int mode = 0;

inline void count() {
  calls++;
  if (in_call) {
    in_call();
  }
}

inline void mind_captures(bool allowed_if_relaxed) {
  if (captures && !(allowed_if_relaxed && mode == 2)) {
    ended++;
  }
}

} // namespace hip

extern "C" {
inline uint32_t done() { return hip::count(), 0; }
uint32_t hipGetDeviceCount(int *devices) { return *devices = 2, done(); }
uint32_t hipGetDevice(int *device) { return *device = hip::current, done(); }
uint32_t hipSetDevice(int device) {
  hip::made_current[device] += std::this_thread::get_id() != hip::first_thread;
  return hip::current = device, done();
}
uint32_t hipMalloc(void **memory, size_t bytes) {
  hip::mind_captures(true);
  *memory = std::aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
  return done();
}
uint32_t hipFree(void *memory) {
  hip::mind_captures(false);
  std::free(memory);
  return done();
}
uint32_t hipMemGetInfo(size_t *free, size_t *total) { return *free = *total = size_t{8} << 30, done(); }
uint32_t hipStreamQuery(void *) { return done() + (hip::busy && hip::calls % 2 ? 600 : 0); }
uint32_t hipEventCreateWithFlags(void **event, uint32_t) { return *event = nullptr, done(); }
uint32_t hipEventRecord(void *, void *) { return done(); }
uint32_t hipEventQuery(void *) { return done() + (hip::busy && hip::calls % 2 ? 600 : 0); }
uint32_t hipEventSynchronize(void *) { return done(); }
uint32_t hipEventDestroy(void *) { return done(); }
uint32_t hipDeviceSynchronize() { return hip::mind_captures(false), done(); }
uint32_t hipDeviceGetAttribute(int *value, int, int) { return *value = 0, done(); }
uint32_t hipStreamIsCapturing(void *, int *status) { return *status = hip::captures, done(); }
uint32_t hipThreadExchangeStreamCaptureMode(int *mode) {
  int before = hip::mode;
  hip::mode = *mode;
  *mode = before;
  return done();
}
uint32_t hipGetLastError() { return done(); }
const char *hipGetErrorName(uint32_t) { return "an error"; }
}
