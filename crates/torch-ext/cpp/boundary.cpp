// Converts exceptions to error codes for Rust: see boundary.h.

#include "boundary.h"

#include <new>

#include <ATen/DeviceAccelerator.h>
#include <c10/util/Exception.h>

namespace {

thread_local std::string last_message;
thread_local int32_t last_detail = 0;

int32_t keep(surefoot::Code code, const char* message, int32_t detail = 0) noexcept {
  try {
    last_message = message;
  } catch (...) {
    last_message.clear(); // no memory left for the message itself
  }
  last_detail = detail;
  return code;
}

} // namespace

namespace surefoot {

int32_t record_current_exception() noexcept {
  try {
    throw;
  } catch (const Refusal& refusal) {
    return keep(refusal.code, refusal.message.c_str());
  } catch (const c10::OutOfMemoryError& error) {
    return keep(kOutOfMemory, error.what_without_backtrace());
  } catch (const c10::AcceleratorError& error) {
    return keep(kAccelerator, error.what_without_backtrace(), error.get_error_code());
  } catch (const c10::NotImplementedError& error) {
    return keep(kNotImplemented, error.what_without_backtrace());
  } catch (const c10::Error& error) {
    return keep(kTorch, error.what_without_backtrace());
  } catch (const std::bad_alloc& error) {
    return keep(kOutOfMemory, error.what());
  } catch (const std::exception& error) {
    return keep(kTorch, error.what());
  } catch (...) {
    return keep(kTorch, "an exception that is not a std::exception");
  }
}

c10::Device accelerator_of(int32_t index) {
  const auto type = at::accelerator::getAccelerator(/*checked=*/false);
  const int32_t count = type ? at::accelerator::deviceCount() : 0;
  if (count == 0) {
    throw Refusal{kNoAccelerator, "this libtorch sees no accelerator"};
  }
  if (index < 0 || index >= count) {
    throw Refusal{
        kInvalidArgument,
        "there is no device " + std::to_string(index) + ": this machine has " + std::to_string(count)};
  }
  return c10::Device(*type, static_cast<c10::DeviceIndex>(index));
}

std::vector<at::Tensor> tensors_of(at::Tensor* const* tensors, size_t count) {
  std::vector<at::Tensor> list;
  list.reserve(count);
  for (size_t i = 0; i < count; ++i) {
    if (tensors[i] == nullptr) {
      throw Refusal{kInvalidArgument, "tensor " + std::to_string(i) + " of the list is null"};
    }
    list.push_back(*tensors[i]);
  }
  return list;
}

} // namespace surefoot

extern "C" {

// Message of the last failure on this thread; valid until the next one.
const char* surefoot_last_message() {
  return last_message.c_str();
}

// The accelerator's error number of the last failure, 0 if it had none.
int32_t surefoot_last_detail() {
  return last_detail;
}
}
