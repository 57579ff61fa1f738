// A linear layer whose weight is computed when it is needed, and again in the
// backward pass: for frozen weights that are stored in quantised form.
//
//   forward   output = input @ w()ᵀ + bias      w() is dropped at once
//   backward  gradient of input = gradient @ w()
//
// The standard function would keep w() for the backward pass, and so use the memory
// that quantisation should save. `w` is a Rust closure (src/linear.rs).

#include <optional>

#include <ATen/ops/linear.h>
#include <ATen/ops/mm.h>
#include <c10/core/GradMode.h>
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

  at::Tensor weight() const {
    const c10::AutoGradMode no_gradient(false);
    auto results = (*closure)({});
    if (results.size() != 1 || results.front().dim() != 2) {
      throw surefoot::Refusal{surefoot::kInvalidArgument, "the weight of a linear layer is one matrix"};
    }
    return std::move(results.front());
  }
};

struct Linear : torch::autograd::Function<Linear> {
  static Variable forward(AutogradContext* context, const Variable& input, c10::intrusive_ptr<Layer> layer) {
    auto output = at::linear(input, layer->weight(), layer->bias);
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
    const auto& gradient = gradients.front();
    const auto rows = gradient.reshape({-1, gradient.size(-1)});
    return {at::mm(rows, layer->weight()).reshape(sizes), Variable()};
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
}
