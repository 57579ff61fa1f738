// Linear layers whose weight is computed when it is needed, and again in the
// backward pass: for frozen weights that are stored in quantised form. The second one
// has a weight for each of several groups of rows.
//
//   forward   output = (input @ w()ᵀ) · s + bias      w() is dropped at once
//   backward  gradient of input = (gradient · s) @ w()
//
// The standard function would keep w() for the backward pass, and so use the memory
// that quantisation should save. `w` is a Rust closure (src/linear.rs). A scale `s` for each
// output is optional. With one, w() can be integers that were only converted, and the
// products, which have fewer elements than large matrices, are scaled instead of the weight.

#include <algorithm>
#include <optional>
#include <vector>

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/tensor.h>
#include <c10/core/GradMode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/autograd/custom_function.h>

#include "boundary.h"
#include "closure.h"

namespace {

using surefoot::Closure;
using torch::autograd::AutogradContext;
using torch::autograd::Variable;
using torch::autograd::variable_list;

// Stored in `saved_data`.
struct Layer : torch::CustomClassHolder {
  c10::intrusive_ptr<Closure> closure;
  std::optional<at::Tensor> bias;

  struct Made {
    at::Tensor weight;
    at::Tensor scale; // [outputs]; undefined for none
  };

  Made made() const {
    const c10::AutoGradMode no_gradient(false);
    auto results = (*closure)({});
    if (results.empty() || results.size() > 2 || results.front().dim() != 2) {
      throw surefoot::Refusal{surefoot::kInvalidArgument, "the weight of a linear layer is one matrix"};
    }
    Made made{std::move(results.front()), results.size() == 2 ? std::move(results.back()) : at::Tensor()};
    if (made.scale.defined() && (made.scale.dim() != 1 || made.scale.size(0) != made.weight.size(0))) {
      throw surefoot::Refusal{surefoot::kInvalidArgument, "a linear layer has one scale for each output"};
    }
    return made;
  }
};

struct Linear : torch::autograd::Function<Linear> {
  static Variable forward(AutogradContext* context, const Variable& input, c10::intrusive_ptr<Layer> layer) {
    const auto made = layer->made();
    at::Tensor output;
    if (made.scale.defined()) {
      output = at::linear(input, made.weight).mul_(made.scale);
      if (layer->bias) {
        output.add_(*layer->bias);
      }
    } else {
      output = at::linear(input, made.weight, layer->bias);
    }
    context->saved_data["sizes"] = input.sizes().vec();
    context->saved_data["layer"] = c10::IValue::make_capsule(std::move(layer));
    return output;
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const auto layer = c10::static_intrusive_pointer_cast<Layer>(context->saved_data["layer"].toCapsule());
    const auto sizes = context->saved_data["sizes"].toIntVector();
    if (!gradients.front().defined()) {
      return {Variable(), Variable()};
    }
    const auto made = layer->made();
    const auto& gradient = gradients.front();
    auto rows = gradient.reshape({-1, gradient.size(-1)});
    if (made.scale.defined()) {
      // Computed in the type of the scale, and rounded once.
      auto scaled = at::empty_like(rows);
      at::mul_out(scaled, rows, made.scale);
      rows = std::move(scaled);
    }
    return {at::mm(rows, made.weight).reshape(sizes), Variable()};
  }
};

// Rows in groups, each with a matrix of its own: those of group g are from bounds[g] to bounds[g + 1].
struct Groups : torch::CustomClassHolder {
  c10::intrusive_ptr<Closure> closure;
  std::vector<int64_t> bounds;
  // The most matrices that are made at a time.
  int64_t most = 1;

  // Calls `use(first row, number of rows, matrix)` for each group that has rows.
  template <typename Use>
  void each(Use use) const {
    const c10::AutoGradMode no_gradient(false);
    const auto count = static_cast<int64_t>(bounds.size()) - 1;
    const auto rows = [&](int64_t group) { return bounds[group + 1] - bounds[group]; };
    for (int64_t first = 0; first < count; ++first) {
      if (rows(first) == 0) {
        continue;
      }
      int64_t end = first + 1;
      while (end < count && end - first < most && rows(end) > 0) {
        ++end;
      }
      at::Tensor range;
      {
        const c10::impl::ExcludeDispatchKeyGuard real(c10::DispatchKey::Fake); // the closure reads it
        range = at::tensor({first, end}, at::kLong);
      }
      const auto made = (*closure)({range});
      if (made.size() != 1 || made.front().dim() != 3 || made.front().size(0) != end - first) {
        throw surefoot::Refusal{surefoot::kInvalidArgument, "the weights of a range of groups are one matrix each"};
      }
      for (int64_t group = first; group < end; ++group) {
        use(bounds[group], rows(group), made.front().select(0, group - first));
      }
      first = end - 1;
    }
  }
};

struct GroupedLinear : torch::autograd::Function<GroupedLinear> {
  static Variable forward(
      AutogradContext* context,
      const Variable& input,
      c10::intrusive_ptr<Groups> groups,
      int64_t outputs) {
    auto output = at::empty({input.size(0), outputs}, input.options());
    groups->each([&](int64_t first, int64_t rows, const at::Tensor& weight) {
      auto part = output.narrow(0, first, rows);
      at::mm_out(part, input.narrow(0, first, rows), weight.t());
    });
    context->saved_data["inputs"] = input.size(1);
    context->saved_data["groups"] = c10::IValue::make_capsule(std::move(groups));
    return output;
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    if (!gradients.front().defined()) {
      return {Variable(), Variable(), Variable()};
    }
    const auto groups = c10::static_intrusive_pointer_cast<Groups>(context->saved_data["groups"].toCapsule());
    const auto& gradient = gradients.front();
    auto result = at::empty({gradient.size(0), context->saved_data["inputs"].toInt()}, gradient.options());
    groups->each([&](int64_t first, int64_t rows, const at::Tensor& weight) {
      auto part = result.narrow(0, first, rows);
      at::mm_out(part, gradient.narrow(0, first, rows), weight);
    });
    return {result, Variable(), Variable()};
  }
};

} // namespace

extern "C" {

// Takes ownership of the closure, even on failure. `bias` may be null.
int32_t surefoot_linear(
    const surefoot_closure* closure,
    const at::Tensor* input,
    const at::Tensor* bias,
    at::Tensor** out) {
  return surefoot::guarded([&] {
    auto owner = c10::make_intrusive<Closure>(*closure);
    auto layer = c10::make_intrusive<Layer>();
    layer->closure = std::move(owner);
    if (bias != nullptr) {
      if (bias->requires_grad()) {
        throw surefoot::Refusal{surefoot::kInvalidArgument, "the bias of a frozen linear layer must not require a gradient"};
      }
      layer->bias = *bias;
    }
    *out = new at::Tensor(Linear::apply(*input, layer));
  });
}

// Takes ownership of the closure, even on failure. The groups have all rows of `input`: `bounds` are ascending, from zero
// to their number.
int32_t surefoot_grouped_linear(
    const surefoot_closure* closure,
    const at::Tensor* input,
    const int64_t* bounds,
    size_t bound_count,
    int64_t outputs,
    int64_t most,
    at::Tensor** out) {
  return surefoot::guarded([&] {
    auto groups = c10::make_intrusive<Groups>();
    groups->closure = c10::make_intrusive<Closure>(*closure);
    groups->bounds.assign(bounds, bounds + bound_count);
    groups->most = most;
    const bool whole = input->dim() == 2 && bound_count > 0 && groups->bounds.front() == 0 &&
        groups->bounds.back() == input->size(0) && std::is_sorted(groups->bounds.begin(), groups->bounds.end());
    if (!whole) {
      throw surefoot::Refusal{surefoot::kInvalidArgument, "the bounds of groups must ascend from zero to the number of rows"};
    }
    *out = new at::Tensor(GroupedLinear::apply(*input, groups, outputs));
  });
}
}
