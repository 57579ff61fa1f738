// The boundary between C++ and Rust.
//
// Rust calls the `extern "C"` functions of this folder. A C++ exception must
// never cross into Rust, so every one of them wraps its body in `guarded`,
// which returns a code and keeps the message for `surefoot_last_message`. The
// code identifies the *class* of the exception, because the message alone does
// not distinguish a full device from a broken one; the class is interpreted in
// Rust (`src/error.rs`).
//
// Device-agnostic: includes only headers of libtorch_cpu and libc10, none of CUDA or HIP.
#pragma once

#include <cstdint>
#include <exception>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

namespace surefoot {

// Mirrored by `Code` in `src/raw.rs`.
enum Code : int32_t {
  kOk = 0,
  kTorch = 1,           // c10::Error and every other std::exception
  kOutOfMemory = 2,     // c10::OutOfMemoryError, std::bad_alloc
  kAccelerator = 3,     // c10::AcceleratorError; its number is in `surefoot_last_detail`
  kNoAccelerator = 4,   // this libtorch or this machine has none
  kInvalidArgument = 5, // refused here, before libtorch saw it
  kNotImplemented = 6,  // c10::NotImplementedError: no kernel for this dtype or device
  kCallback = 7,        // a Rust callback failed; Rust kept its error
  kPeer = 8,            // another process did not respond, or the connection to it was lost
  kDeviceLost = 9,      // reported by a Rust callback: the device's context is unusable
};

// Thrown by this shim itself, with the code for Rust. A std::exception,
// because autograd's engine terminates the process for anything else.
struct Refusal : std::exception {
  Code code;
  std::string message;

  Refusal(Code code_, std::string message_) : code(code_), message(std::move(message_)) {}

  const char* what() const noexcept override {
    return message.c_str();
  }
};

// Classifies the exception in flight, keeps its message, returns its code.
int32_t record_current_exception() noexcept;

template <typename Body>
int32_t guarded(Body&& body) noexcept {
  try {
    body();
    return kOk;
  } catch (...) {
    return record_current_exception();
  }
}

// The accelerator device with this index; throws a `Refusal` if there is none.
c10::Device accelerator_of(int32_t index);

// The tensors for an array of pointers from Rust; null pointers are refused.
std::vector<at::Tensor> tensors_of(at::Tensor* const* tensors, size_t count);

} // namespace surefoot
