// Operations that tch's generated bindings lack: fused AdamW, foreach
// norms, non-blocking copies, gradients of leaves, loops on libtorch's threads.

#include <map>

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/_flash_attention_forward.h>
#include <ATen/ops/_foreach_add.h>
#include <ATen/ops/_foreach_mul.h>
#include <ATen/ops/_foreach_norm.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/stack.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/stable/c/shim.h>

#include "boundary.h"

using surefoot::guarded;
using surefoot::tensors_of;

extern "C" {
// Mirrored by `raw::AdamWOptions`.
struct surefoot_adamw_options {
  double learning_rate;
  double beta1;
  double beta2;
  double weight_decay;
  double epsilon;
};
}

namespace {

// Groups of tensors that one call of a foreach kernel can process together.
using Kinship = std::tuple<c10::Device, at::ScalarType>;

struct KinshipOrder {
  static auto key(const Kinship& kinship) {
    const auto& device = std::get<0>(kinship);
    return std::make_tuple(device.type(), device.index(), std::get<1>(kinship));
  }
  bool operator()(const Kinship& a, const Kinship& b) const {
    return key(a) < key(b);
  }
};

Kinship kinship_of(const at::Tensor& tensor) {
  return {tensor.device(), tensor.scalar_type()};
}

// Whether both tensors have their elements in the same order in memory: the fused
// CPU kernel ignores strides and processes memory linearly. (Strides of dimensions of size one do not matter.)
bool one_walk(const at::Tensor& a, const at::Tensor& b) {
  const bool plain = a.is_contiguous() && b.is_contiguous();
  return plain || (a.strides() == b.strides() && a.is_non_overlapping_and_dense());
}

std::map<Kinship, std::vector<at::Tensor>, KinshipOrder> by_kinship(const std::vector<at::Tensor>& tensors) {
  std::map<Kinship, std::vector<at::Tensor>, KinshipOrder> groups;
  for (const auto& tensor : tensors) {
    groups[kinship_of(tensor)].push_back(tensor);
  }
  return groups;
}

// One norm over all tensors, in float32, on the device of the first tensor.
at::Tensor total_norm(const std::vector<at::Tensor>& tensors) {
  if (tensors.empty()) {
    throw surefoot::Refusal{surefoot::kInvalidArgument, "the norm of no tensors at all is undefined"};
  }
  const auto home = tensors.front().device();
  std::vector<at::Tensor> norms;
  norms.reserve(tensors.size());
  for (const auto& [_, group] : by_kinship(tensors)) {
    for (auto& norm : at::_foreach_norm(group, 2, at::kFloat)) {
      norms.push_back(norm.to(home));
    }
  }
  return at::linalg_vector_norm(at::stack(norms), 2);
}

} // namespace

extern "C" {

// Causal attention of texts that stand one after the other, [tokens, heads, width]. `bounds`, int32 on the device, are where they
// begin, and where the last one ends. A token sees the last `window` tokens, itself included; zero for all of its text.
int32_t surefoot_flash_texts(
    const at::Tensor* query,
    const at::Tensor* key,
    const at::Tensor* value,
    const at::Tensor* bounds,
    int64_t longest,
    int64_t window,
    double scale,
    at::Tensor** out) {
  return guarded([&] {
    // Builds for ROCm compute NaN with -1, the other way to say that there is no window.
    std::optional<int64_t> left, right;
    if (window > 0) {
      left = window - 1;
      right = 0;
    }
    constexpr double kDropout = 0;
    constexpr bool kCausal = true, kReturnScores = false;
    auto results = at::_flash_attention_forward(
        *query, *key, *value, *bounds, *bounds, longest, longest, kDropout, kCausal, kReturnScores, scale, left, right);
    *out = new at::Tensor(std::get<0>(std::move(results)));
  });
}

// One AdamW step over `count` parameters on any devices and with any dtypes. `steps` are
// float32 scalars on the same device as their parameter, and are incremented here.
int32_t surefoot_fused_adamw(
    at::Tensor* const* parameters,
    at::Tensor* const* gradients,
    at::Tensor* const* averages,
    at::Tensor* const* squares,
    at::Tensor* const* steps,
    size_t count,
    const surefoot_adamw_options* options) {
  return guarded([&] {
    const c10::AutoGradMode no_gradient(false);
    struct Group {
      std::vector<at::Tensor> parameters, gradients, averages, squares, steps;
    };
    std::map<Kinship, Group, KinshipOrder> groups;
    const auto parameter_list = tensors_of(parameters, count);
    const auto gradient_list = tensors_of(gradients, count);
    const auto average_list = tensors_of(averages, count);
    const auto square_list = tensors_of(squares, count);
    const auto step_list = tensors_of(steps, count);
    for (size_t i = 0; i < count; ++i) {
      const auto kinship = kinship_of(parameter_list[i]);
      for (const auto* other : {&gradient_list[i], &average_list[i], &square_list[i]}) {
        if (kinship_of(*other) != kinship || other->sizes() != parameter_list[i].sizes() ||
            !one_walk(parameter_list[i], *other)) {
          throw surefoot::Refusal{
              surefoot::kInvalidArgument,
              "parameter " + std::to_string(i) +
                  " and its gradient and moments must agree in device, dtype, shape and layout"};
        }
      }
      auto& group = groups[kinship];
      group.parameters.push_back(parameter_list[i]);
      group.gradients.push_back(gradient_list[i]);
      group.averages.push_back(average_list[i]);
      group.squares.push_back(square_list[i]);
      group.steps.push_back(step_list[i]);
    }
    for (auto& [_, group] : groups) {
      at::_foreach_add_(group.steps, 1);
      at::_fused_adamw_(
          group.parameters,
          group.gradients,
          group.averages,
          group.squares,
          /*max_exp_avg_sqs=*/{},
          group.steps,
          options->learning_rate,
          options->beta1,
          options->beta2,
          options->weight_decay,
          options->epsilon,
          /*amsgrad=*/false,
          /*maximize=*/false);
    }
  });
}

int32_t surefoot_total_norm(at::Tensor* const* tensors, size_t count, at::Tensor** out) {
  return guarded([&] {
    const c10::AutoGradMode no_gradient(false);
    *out = new at::Tensor(total_norm(tensors_of(tensors, count)));
  });
}

// Scales the tensors so that their total norm is at most `max_norm`, without
// waiting for the device, and returns the original norm.
int32_t surefoot_clip_norm(at::Tensor* const* tensors, size_t count, double max_norm, at::Tensor** out) {
  return guarded([&] {
    const c10::AutoGradMode no_gradient(false);
    const auto list = tensors_of(tensors, count);
    const auto norm = total_norm(list);
    // 1e-6 as in torch.nn.utils.clip_grad_norm_.
    const auto factor = (max_norm / (norm + 1e-6)).clamp_max(1.0);
    for (const auto& [kinship, group] : by_kinship(list)) {
      at::_foreach_mul_(group, factor.to(std::get<0>(kinship)));
    }
    *out = new at::Tensor(norm);
  });
}

int32_t surefoot_copy(at::Tensor* destination, const at::Tensor* source, bool non_blocking) {
  return guarded([&] {
    const c10::AutoGradMode no_gradient(false);
    destination->copy_(*source, non_blocking);
  });
}

// --- backward ----------------------------------------------------------------

int32_t surefoot_backward(const at::Tensor* loss) {
  return guarded([&] { torch::autograd::backward({*loss}, {}); });
}

// Takes `leaf.grad` out of the leaf. `*out` is null if there was none.
int32_t surefoot_take_gradient(at::Tensor* leaf, at::Tensor** out) {
  return guarded([&] {
    *out = nullptr;
    auto& gradient = leaf->mutable_grad();
    if (gradient.defined()) {
      *out = new at::Tensor(std::move(gradient));
      gradient = at::Tensor();
    }
  });
}

// Replaces `leaf.grad`.
int32_t surefoot_put_gradient(at::Tensor* leaf, const at::Tensor* gradient) {
  return guarded([&] { leaf->mutable_grad() = *gradient; });
}

bool surefoot_gradients_are_recorded() {
  return c10::GradMode::is_enabled();
}

// --- random numbers ------------------------------------------------------------

int32_t surefoot_manual_seed(uint64_t seed) {
  return guarded([&] { at::manual_seed(seed); });
}

// --- threads -----------------------------------------------------------------------

int32_t surefoot_set_num_threads(int32_t threads) {
  return guarded([&] { at::set_num_threads(threads); });
}

int32_t surefoot_num_threads(int32_t* threads) {
  return guarded([&] { *threads = at::get_num_threads(); });
}

// Calls `share` for ranges of 0..count, no more than there are grains, on the threads of libtorch's own operators.
int32_t surefoot_in_shares(size_t count, size_t grain, ParallelFunc share, void* work) {
  return guarded([&] {
    const auto code = torch_parallel_for(0, static_cast<int64_t>(count), static_cast<int64_t>(grain), share, work);
    TORCH_CHECK(code == 0, "libtorch's threads did not do their shares");
  });
}
}
