// The boundary between C++ and Rust.
//
// Rust calls the `extern "C"` functions of this folder. A C++ exception must
// never cross into Rust, so every one of them wraps its body in `guarded`,
// which returns a code and keeps the message for `surefoot_last_message`. The
// code says which *class* of exception it was, because the message alone does
// not tell a full device from a broken one; what the class means is decided in
// Rust (`src/error.rs`).
//
// Device-agnostic: only headers of libtorch_cpu and libc10, none of CUDA or HIP.
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
  kPeer = 8,            // another process did not answer, or the connection to it broke
  kDeviceLost = 9,      // as a Rust callback says: the device's context is unusable
};

// Thrown by this shim itself, with the code that Rust shall see. A std::exception,
// because autograd's engine ends the process for anything else.
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

// tch's numbering: -1 is the CPU, an index from zero is an accelerator.
c10::Device device_of(int32_t index);

// The accelerator's device of this index, or a `Refusal` when there is none.
c10::Device accelerator_of(int32_t index);

// The tensors behind an array of pointers from Rust; null is refused.
std::vector<at::Tensor> tensors_of(at::Tensor* const* tensors, size_t count);

} // namespace surefoot
