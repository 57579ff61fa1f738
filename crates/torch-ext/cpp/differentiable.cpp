// A step of the graph whose backward pass is written by hand: its outputs were computed from its inputs
// without being recorded, and a Rust closure (src/differentiable.rs) makes their gradients.
//
//   backward  gradients of inputs = f(kept, gradients of outputs)
//
// What lies between inputs and outputs is freed unless it is among the tensors that are kept. Beside it, what Rust launches for
// itself, as the callbacks of operators see it.

#include <ATen/core/Tensor.h>
#include <ATen/record_function.h>
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
  variable_list outputs, kept;
};

struct Differentiable : torch::autograd::Function<Differentiable> {
  // A TensorList, as for `Checkpoint`: `apply` finds tensors in no other kind of list.
  static variable_list forward(AutogradContext* context, at::TensorList list, const c10::intrusive_ptr<Step>& step) {
    context->save_for_backward(step->kept);
    context->saved_data["inputs"] = static_cast<int64_t>(list.size());
    context->saved_data["closure"] = c10::IValue::make_capsule(step->closure);
    // Other handles: the caller's do not become part of the graph.
    variable_list outputs;
    for (const auto& output : step->outputs) {
      outputs.push_back(output.detach());
    }
    return outputs;
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const auto closure = c10::static_intrusive_pointer_cast<Closure>(context->saved_data["closure"].toCapsule());
    const auto inputs = static_cast<size_t>(context->saved_data["inputs"].toInt());
    auto arguments = context->get_saved_variables();
    arguments.insert(arguments.end(), gradients.begin(), gradients.end());
    const c10::AutoGradMode no_gradient(false);
    auto result = (*closure)(arguments);
    if (result.size() != inputs) {
      throw surefoot::Refusal{
          surefoot::kInvalidArgument,
          "a backward pass made " + std::to_string(result.size()) + " gradients for " + std::to_string(inputs) +
              " inputs"};
    }
    for (size_t i = 0; i < inputs; ++i) {
      if (!context->needs_input_grad(i)) {
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
    at::Tensor* const* outputs,
    size_t output_count,
    surefoot_take take,
    void* context) {
  return surefoot::guarded([&] {
    auto step = c10::make_intrusive<Step>();
    step->closure = c10::make_intrusive<Closure>(*closure);
    const auto list = surefoot::tensors_of(inputs, input_count);
    step->kept = surefoot::tensors_of(kept, kept_count);
    step->outputs = surefoot::tensors_of(outputs, output_count);
    for (const auto& output : step->outputs) {
      if (output.requires_grad()) {
        throw surefoot::Refusal{surefoot::kInvalidArgument, "the output of a step must not be recorded already"};
      }
    }
    for (const auto& output : Differentiable::apply(at::TensorList(list), step)) {
      take(context, new at::Tensor(output));
    }
  });
}

// Calls `launch`, which launches a kernel of this name that reads and writes these.
int32_t surefoot_launched(
    const char* name,
    at::Tensor* const* reads,
    size_t read_count,
    at::Tensor* const* writes,
    size_t write_count,
    void (*launch)(void*),
    void* context) {
  return surefoot::guarded([&] {
    const auto boxed = [](at::Tensor* const* tensors, size_t count) {
      const auto list = surefoot::tensors_of(tensors, count);
      return std::vector<c10::IValue>(list.begin(), list.end());
    };
    at::RecordFunction guard(at::RecordScope::FUNCTION);
    if (guard.isActive()) {
      const auto inputs = boxed(reads, read_count);
      guard.before(name, c10::ArrayRef<const c10::IValue>(inputs.data(), inputs.size()));
      launch(context);
      guard.setOutputs(boxed(writes, write_count));
    } else {
      launch(context);
    }
  });
}
}
