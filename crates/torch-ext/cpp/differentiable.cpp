// A step of the graph whose backward pass is written by hand: its output was computed from its inputs
// without being recorded, and a Rust closure (src/differentiable.rs) makes their gradients.
//
//   backward  gradients of inputs = f(inputs, kept, gradient of output)
//
// What lies between inputs and output is freed unless it is among the tensors that are kept.

#include <ATen/core/Tensor.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/custom_function.h>

#include "boundary.h"
#include "closure.h"

namespace {

using surefoot::Closure;
using torch::autograd::AutogradContext;
using torch::autograd::Variable;
using torch::autograd::variable_list;

// What `forward` gets besides the inputs; the closure is stored in `saved_data`.
struct Step : torch::CustomClassHolder {
  c10::intrusive_ptr<Closure> closure;
  at::Tensor output;
  variable_list kept;
};

struct Differentiable : torch::autograd::Function<Differentiable> {
  // A TensorList, as for `Checkpoint`: `apply` finds tensors in no other kind of list.
  static Variable forward(AutogradContext* context, at::TensorList list, const c10::intrusive_ptr<Step>& step) {
    auto saved = list.vec();
    context->saved_data["inputs"] = static_cast<int64_t>(saved.size());
    saved.insert(saved.end(), step->kept.begin(), step->kept.end());
    context->save_for_backward(std::move(saved));
    context->saved_data["closure"] = c10::IValue::make_capsule(step->closure);
    // Another handle: the caller's does not become part of the graph.
    return step->output.detach();
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const auto closure = c10::static_intrusive_pointer_cast<Closure>(context->saved_data["closure"].toCapsule());
    const auto inputs = static_cast<size_t>(context->saved_data["inputs"].toInt());
    auto arguments = context->get_saved_variables();
    std::vector<bool> wanted;
    for (size_t i = 0; i < inputs; ++i) {
      wanted.push_back(arguments[i].requires_grad());
    }
    arguments.push_back(gradients.front());
    const c10::AutoGradMode no_gradient(false);
    auto result = (*closure)(arguments);
    if (result.size() != inputs) {
      throw surefoot::Refusal{
          surefoot::kInvalidArgument,
          "a backward pass made " + std::to_string(result.size()) + " gradients for " + std::to_string(inputs) +
              " inputs"};
    }
    for (size_t i = 0; i < inputs; ++i) {
      if (!wanted[i]) {
        result[i] = Variable();
      }
    }
    result.emplace_back(); // the step has no gradient
    return result;
  }
};

} // namespace

extern "C" {

// Takes ownership of the closure, even on failure.
int32_t surefoot_differentiable(
    const surefoot_closure* closure,
    at::Tensor* const* inputs,
    size_t input_count,
    at::Tensor* const* kept,
    size_t kept_count,
    const at::Tensor* output,
    at::Tensor** out) {
  return surefoot::guarded([&] {
    auto step = c10::make_intrusive<Step>();
    step->closure = c10::make_intrusive<Closure>(*closure);
    const auto list = surefoot::tensors_of(inputs, input_count);
    step->kept = surefoot::tensors_of(kept, kept_count);
    if (output->requires_grad()) {
      throw surefoot::Refusal{surefoot::kInvalidArgument, "the output of a step must not be recorded already"};
    }
    step->output = *output;
    *out = new at::Tensor(Differentiable::apply(at::TensorList(list), step));
  });
}
}
