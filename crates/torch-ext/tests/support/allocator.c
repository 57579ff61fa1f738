/* The smallest library with the C ABI of hip_alloc.h: malloc with counters.
 * -DABI=n        claims version n
 * -DLACKS_TRIM   leaves a function out
 * -DMISALIGNED   hands out memory that no vector kernel can use
 * Requests above one GiB fail, as on a full device. */
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#ifndef ABI
#define ABI 1
#endif

struct hip_alloc_stats {
  uint64_t live_bytes, live_peak_bytes, held_bytes, held_peak_bytes, live_allocations, allocations, frees,
      driver_allocs, driver_frees, out_of_memory, pending_bytes, capacity_bytes;
};

static _Atomic uint64_t allocations, frees, refused, trimmed_to, recorded;

void *hip_alloc_malloc(size_t size, int device, void *stream) {
  (void)device;
  (void)stream;
  if (size > (size_t)1 << 30) {
    refused++;
    return NULL;
  }
  allocations++;
#ifdef MISALIGNED
  return (char *)aligned_alloc(64, (size + 127) / 64 * 64) + 8;
#else
  return aligned_alloc(64, (size + 63) / 64 * 64 + (size == 0) * 64);
#endif
}

void hip_alloc_free(void *pointer, size_t size, int device, void *stream) {
  (void)size;
  (void)device;
  (void)stream;
  frees++;
#ifdef MISALIGNED
  pointer = (char *)pointer - 8;
#endif
  free(pointer);
}

void hip_alloc_record_stream(void *pointer, void *stream) {
  (void)pointer;
  (void)stream;
  recorded++;
}

int hip_alloc_mem_info(int device, size_t *free_bytes, size_t *total) {
  if (device < -1) return 7;
  *free_bytes = 1000;
  *total = 2000;
  return 0;
}

int hip_alloc_stats(int device, struct hip_alloc_stats *out, size_t out_size) {
  (void)device;
  struct hip_alloc_stats stats = {0};
  stats.allocations = allocations;
  stats.frees = frees;
  stats.out_of_memory = refused;
  stats.pending_bytes = recorded;
  stats.capacity_bytes = trimmed_to;
  memcpy(out, &stats, out_size < sizeof stats ? out_size : sizeof stats);
  return 0;
}

int hip_alloc_reset_peaks(int device) {
  (void)device;
  return 0;
}

#ifndef LACKS_TRIM
int hip_alloc_trim(int device, size_t keep_bytes) {
  (void)device;
  trimmed_to = keep_bytes;
  return 0;
}
#endif

unsigned hip_alloc_abi_version(void) { return ABI; }
