// A Rust closure that a node of the autograd graph calls.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <c10/util/Exception.h>

#include "boundary.h"

extern "C" {
// Runs the closure on borrowed inputs. It passes its results to
// `surefoot_results_push` one by one, or returns a nonzero code.
typedef int32_t (*surefoot_recompute)(void* closure, at::Tensor* const* inputs, size_t input_count, void* results);
typedef void (*surefoot_drop)(void* closure);
// Takes ownership of one tensor. Never throws.
typedef void (*surefoot_take)(void* context, at::Tensor* tensor);
typedef const char* (*surefoot_failure)(void* closure);

// Mirrored by `raw::Closure`.
struct surefoot_closure {
  void* data;
  surefoot_recompute run;
  surefoot_failure failure; // the message of the last `run` that failed
  surefoot_drop drop;
};
}

namespace surefoot {

// A Rust closure, dropped with the last node that may call it.
struct Closure : torch::CustomClassHolder {
  surefoot_closure raw;
  explicit Closure(surefoot_closure raw_) : raw(raw_) {}
  Closure(const Closure&) = delete;
  Closure& operator=(const Closure&) = delete;
  ~Closure() override {
    raw.drop(raw.data);
  }

  std::vector<at::Tensor> operator()(const std::vector<at::Tensor>& inputs) const {
    std::vector<at::Tensor*> pointers;
    pointers.reserve(inputs.size());
    for (const auto& input : inputs) {
      pointers.push_back(const_cast<at::Tensor*>(&input));
    }
    std::vector<at::Tensor> results;
    const int32_t code = raw.run(raw.data, pointers.data(), pointers.size(), &results);
    if (code == kOutOfMemory) {
      TORCH_CHECK_WITH(OutOfMemoryError, false, raw.failure(raw.data));
    }
    if (code != kOk) {
      throw Refusal{static_cast<Code>(code), raw.failure(raw.data)};
    }
    return results;
  }
};

} // namespace surefoot
