// Devices, streams, events and memory of the accelerator of libtorch.
//
// Everything goes through at::accelerator and c10's device guards, which
// dispatch at run time: the same object file serves CPU, CUDA and ROCm builds.

#include <ATen/Context.h>
#include <ATen/DeviceAccelerator.h>
#include <ATen/core/CachingHostAllocator.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/Event.h>
#include <c10/core/GradMode.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "boundary.h"

using surefoot::accelerator_of;
using surefoot::guarded;

extern "C" {
// Mirrored by `raw::StreamIdentity`: c10::StreamData3 with fixed widths.
struct surefoot_stream {
  int64_t id;
  int32_t device;
  int32_t device_type;
};

}

namespace {

surefoot_stream pack(const c10::Stream& stream) {
  const auto data = stream.pack3();
  return {data.stream_id, data.device_index, static_cast<int32_t>(data.device_type)};
}

// Called before pinned memory is freed that kernels may still read, on the stream that was current when
// it was mapped or on the current one.
void outlive_kernels(const at::Tensor& pinned, const c10::Stream& mapped) noexcept {
  try {
    const auto device = mapped.device_index();
    const auto& memory = pinned.storage().data_ptr();
    auto* const cache = at::getHostAllocator(mapped.device_type());
    for (const auto& stream : {mapped, at::accelerator::getCurrentStream(device)}) {
      // Memory that is unknown to the cache was pinned by other code, and is not freed here.
      if (!cache->record_event(memory.get(), memory.get_context(), stream)) {
        at::accelerator::synchronizeDevice(device);
        return;
      }
    }
  } catch (...) {
    // The device is lost, or the process exits: no kernel will read anything.
  }
}

c10::Stream unpack(const surefoot_stream& stream) {
  return c10::Stream::unpack3(
      stream.id, static_cast<c10::DeviceIndex>(stream.device), static_cast<c10::DeviceType>(stream.device_type));
}

} // namespace

extern "C" {

// Whether this libtorch was built for ROCm, independent of the devices.
int32_t surefoot_has_hip(bool* answer) {
  return guarded([&] { *answer = at::Context::hasROCM() || at::Context::hasHIP(); });
}

int32_t surefoot_device_count(int32_t* count) {
  return guarded([&] {
    const auto type = at::accelerator::getAccelerator(/*checked=*/false);
    *count = type ? at::accelerator::deviceCount() : 0;
  });
}

int32_t surefoot_set_device(int32_t device) {
  return guarded([&] { at::accelerator::setDeviceIndex(accelerator_of(device).index()); });
}

int32_t surefoot_synchronize(int32_t device) {
  return guarded([&] { at::accelerator::synchronizeDevice(accelerator_of(device).index()); });
}

int32_t surefoot_memory_info(int32_t device, size_t* free, size_t* total) {
  return guarded([&] {
    const auto info = at::accelerator::getMemoryInfo(accelerator_of(device).index());
    *free = info.first;
    *total = info.second;
  });
}

int32_t surefoot_empty_cache() {
  return guarded([] {
    accelerator_of(0);
    at::accelerator::emptyCache();
    at::accelerator::emptyHostCache();
  });
}

// --- streams ---------------------------------------------------------------

int32_t surefoot_current_stream(int32_t device, surefoot_stream* out) {
  return guarded([&] { *out = pack(at::accelerator::getCurrentStream(accelerator_of(device).index())); });
}

int32_t surefoot_new_stream(int32_t device, surefoot_stream* out) {
  return guarded([&] {
    const auto where = accelerator_of(device);
    *out = pack(c10::impl::VirtualGuardImpl(where.type()).getNewStream(where));
  });
}

int32_t surefoot_set_current_stream(const surefoot_stream* stream) {
  return guarded([&] { at::accelerator::setCurrentStream(unpack(*stream)); });
}

int32_t surefoot_stream_handle(const surefoot_stream* stream, void** handle) {
  return guarded([&] { *handle = unpack(*stream).native_handle(); });
}

int32_t surefoot_stream_synchronize(const surefoot_stream* stream) {
  return guarded([&] { unpack(*stream).synchronize(); });
}

int32_t surefoot_record_stream(const at::Tensor* tensor, const surefoot_stream* stream) {
  return guarded([&] {
    at::Tensor alias = *tensor;
    alias.record_stream(unpack(*stream));
  });
}

// --- events ----------------------------------------------------------------

int32_t surefoot_event_new(int32_t device, c10::Event** out) {
  return guarded([&] { *out = new c10::Event(accelerator_of(device).type()); });
}

void surefoot_event_free(c10::Event* event) {
  guarded([&] { delete event; });
}

int32_t surefoot_event_record(c10::Event* event, const surefoot_stream* stream) {
  return guarded([&] { event->record(unpack(*stream)); });
}

// Makes the stream wait for the event without blocking the caller.
int32_t surefoot_event_block(const c10::Event* event, const surefoot_stream* stream) {
  return guarded([&] { event->block(unpack(*stream)); });
}

int32_t surefoot_event_synchronize(const c10::Event* event) {
  return guarded([&] { event->synchronize(); });
}

int32_t surefoot_event_query(const c10::Event* event, bool* done) {
  return guarded([&] { *done = event->query(); });
}

// --- host memory the device can reach ----------------------------------------

int32_t surefoot_pin_memory(const at::Tensor* tensor, at::Tensor** out) {
  return guarded([&] {
    accelerator_of(0);
    // Not `pin_memory()`, which makes no copy if the tensor is already pinned.
    const c10::AutoGradMode no_gradient(false);
    auto pinned = at::empty(tensor->sizes(), tensor->options().device(at::kCPU).pinned_memory(true));
    pinned.copy_(*tensor);
    *out = new at::Tensor(std::move(pinned));
  });
}

// tch's `is_pinned` passes a device, about which libtorch warns each time.
int32_t surefoot_is_pinned(const at::Tensor* tensor, bool* answer) {
  return guarded([&] { *answer = tensor->is_pinned(); });
}

// A device tensor over the same pinned host memory, without a copy. The pinned
// tensor lives as long as the alias, and its memory is not reused
// before the device has finished all work that was queued when the alias was destroyed: the cache of
// pinned memory only tracks copies, not kernels that read it.
int32_t surefoot_map_pinned(const at::Tensor* pinned, int32_t device, at::Tensor** out) {
  return guarded([&] {
    const auto where = accelerator_of(device);
    if (!pinned->device().is_cpu() || !pinned->is_pinned() || !pinned->is_contiguous()) {
      throw surefoot::Refusal{
          surefoot::kInvalidArgument, "only a contiguous tensor in pinned host memory can be mapped into the device"};
    }
    const auto mapped = at::accelerator::getCurrentStream(where.index());
    *out = new at::Tensor(at::for_blob(pinned->data_ptr(), pinned->sizes())
                              .options(pinned->options().device(where).pinned_memory(false))
                              .target_device(where)
                              .deleter([keep = *pinned, mapped](void*) { outlive_kernels(keep, mapped); })
                              .make_tensor());
  });
}
}
