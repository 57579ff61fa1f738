// fp32 matrix products on the CPU by oneDNN.
//
// libtorch computes fp32 products with its BLAS library, which is MKL, and those in
// bfloat16 with oneDNN. MKL checks the vendor of the CPU: CPUs not from Intel
// get AVX2 kernels (`mkl_blas_def_sgemm_kernel_0_zen` in a profile) even if
// they have AVX-512. oneDNN checks the instruction set. So on an AMD CPU with
// AVX-512 the same libtorch multiplies twice as fast with oneDNN.
//
//   mm, addmm, bmm, baddbmm ─▶ autograd ─▶ CPU: these kernels ─┬─▶ oneDNN   dense fp32
//                                                              └─▶ libtorch everything else
//
// The kernels replace those of libtorch in the dispatcher, below autograd, so
// that backward passes, `linear`, `matmul` and everything else that uses these four
// operators uses them too. libtorch's oneDNN function, `at::native::mkldnn_matmul`, is not declared in any
// header; it is looked up by its mangled name, which includes its types. A libtorch
// without it, or with a different signature, keeps its own kernels.

#include <atomic>
#include <memory>
#include <mutex>

#include <dlfcn.h>

#include <ATen/CPUFunctions.h>
#include <ATen/ExpandUtils.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <c10/util/Exception.h>
#include <torch/library.h>

#include "boundary.h"

namespace {

using at::Scalar;
using at::Tensor;

// result = beta * result + alpha * (a @ b), of two or three dimensions.
using Multiply = void (*)(const Tensor& a, const Tensor& b, const Tensor& result, float beta, float alpha);

Multiply onednn_multiply = nullptr;
std::atomic<uint64_t> taken{0};

bool is_plain(const Tensor& tensor, int64_t dimensions) {
  return tensor.dim() == dimensions && tensor.scalar_type() == at::kFloat && tensor.layout() == at::kStrided &&
      tensor.device().is_cpu() && !tensor.is_neg() && tensor.numel() > 0;
}

// Whether oneDNN supports `a @ b`. Everything else is left to libtorch.
bool fits(const Tensor& a, const Tensor& b, int64_t dimensions) {
  return is_plain(a, dimensions) && is_plain(b, dimensions) && a.size(-1) == b.size(-2) &&
      (dimensions == 2 || a.size(0) == b.size(0));
}

std::vector<int64_t> product_size(const Tensor& a, const Tensor& b) {
  auto size = a.sizes().vec();
  size.back() = b.size(-1);
  return size;
}

// Whether the product can be written directly to `out`.
bool is_ready(const Tensor& out, const Tensor& a, const Tensor& b) {
  return is_plain(out, a.dim()) && out.is_contiguous() && out.sizes() == at::IntArrayRef(product_size(a, b)) &&
      !out.is_alias_of(a) && !out.is_alias_of(b);
}

void multiply(const Tensor& a, const Tensor& b, const Tensor& result, float beta, float alpha) {
  taken.fetch_add(1, std::memory_order_relaxed);
  onednn_multiply(a, b, result, beta, alpha);
}

Tensor product(const Tensor& a, const Tensor& b) {
  auto result = at::empty(product_size(a, b), a.options());
  multiply(a, b, result, 0, 1);
  return result;
}

// Whether `beta * self + alpha * (a @ b)` can be computed by adding to a copy of `self`.
bool adds(const Tensor& self, const Tensor& a, const Tensor& b, const Scalar& beta, const Scalar& alpha) {
  return self.scalar_type() == at::kFloat && self.device().is_cpu() && self.layout() == at::kStrided &&
      !beta.isComplex() && !alpha.isComplex() && alpha.toDouble() != 0 &&
      at::is_expandable_to(self.sizes(), product_size(a, b));
}

Tensor added(const Tensor& self, const Tensor& a, const Tensor& b, const Scalar& beta, const Scalar& alpha) {
  auto result = at::empty(product_size(a, b), a.options());
  const auto weight = beta.to<float>();
  // If `beta` is zero, `self` is ignored, including NaN and infinity.
  if (weight != 0) {
    result.copy_(self.expand(result.sizes()));
  }
  multiply(a, b, result, weight, alpha.to<float>());
  return result;
}

// --- the kernels, with the signatures of libtorch's -----------------------------

Tensor mm(const Tensor& a, const Tensor& b) {
  return fits(a, b, 2) ? product(a, b) : at::cpu::mm(a, b);
}

Tensor& mm_out(const Tensor& a, const Tensor& b, Tensor& out) {
  if (!fits(a, b, 2) || !is_ready(out, a, b)) {
    return at::cpu::mm_out(out, a, b);
  }
  multiply(a, b, out, 0, 1);
  return out;
}

Tensor bmm(const Tensor& a, const Tensor& b) {
  return fits(a, b, 3) ? product(a, b) : at::cpu::bmm(a, b);
}

Tensor& bmm_out(const Tensor& a, const Tensor& b, Tensor& out) {
  if (!fits(a, b, 3) || !is_ready(out, a, b)) {
    return at::cpu::bmm_out(out, a, b);
  }
  multiply(a, b, out, 0, 1);
  return out;
}

Tensor addmm(const Tensor& self, const Tensor& a, const Tensor& b, const Scalar& beta, const Scalar& alpha) {
  return fits(a, b, 2) && adds(self, a, b, beta, alpha) ? added(self, a, b, beta, alpha)
                                                        : at::cpu::addmm(self, a, b, beta, alpha);
}

Tensor& addmm_in_place(Tensor& self, const Tensor& a, const Tensor& b, const Scalar& beta, const Scalar& alpha) {
  if (!fits(a, b, 2) || !is_ready(self, a, b) || !adds(self, a, b, beta, alpha)) {
    return at::cpu::addmm_(self, a, b, beta, alpha);
  }
  multiply(a, b, self, beta.to<float>(), alpha.to<float>());
  return self;
}

Tensor baddbmm(const Tensor& self, const Tensor& a, const Tensor& b, const Scalar& beta, const Scalar& alpha) {
  return fits(a, b, 3) && adds(self, a, b, beta, alpha) ? added(self, a, b, beta, alpha)
                                                        : at::cpu::baddbmm(self, a, b, beta, alpha);
}

Tensor& baddbmm_in_place(Tensor& self, const Tensor& a, const Tensor& b, const Scalar& beta, const Scalar& alpha) {
  if (!fits(a, b, 3) || !is_ready(self, a, b) || !adds(self, a, b, beta, alpha)) {
    return at::cpu::baddbmm_(self, a, b, beta, alpha);
  }
  multiply(a, b, self, beta.to<float>(), alpha.to<float>());
  return self;
}

// --- installation ----------------------------------------------------------------

// libtorch warns if a kernel is replaced, which is intended here.
struct Quiet : c10::WarningHandler {
  void process(const c10::Warning&) override {}
};

// Whether the function that was found computes correct results, in every form in which it is used.
bool computes(Multiply found) {
  const c10::InferenceMode no_graph;
  const auto a = at::arange(6, at::kFloat).reshape({2, 3}), b = at::arange(12, at::kFloat).reshape({3, 4});
  const auto expected = at::cpu::mm(a, b);
  auto result = at::full({2, 4}, 3.0, at::kFloat);
  found(a, b, result, 0, 1);
  bool right = at::equal(result, expected);
  found(a, b.t().contiguous().t(), result, 2, 3);
  right = right && at::equal(result, expected.mul(5));
  auto batch = at::empty({1, 2, 4}, at::kFloat);
  found(a.t().contiguous().t().unsqueeze(0), b.unsqueeze(0), batch, 0, 1);
  return right && at::equal(batch[0], expected);
}

Multiply find_onednn() {
  constexpr const char* kName = "_ZN2at6native13mkldnn_matmulERKNS_6TensorES3_S3_ff";
  const auto found = reinterpret_cast<Multiply>(dlsym(RTLD_DEFAULT, kName));
  try {
    return found != nullptr && computes(found) ? found : nullptr;
  } catch (const std::exception&) {
    return nullptr; // built without oneDNN, or the CPU is not supported
  }
}

} // namespace

extern "C" {

// Whether this CPU has instructions that oneDNN uses and MKL does not.
bool surefoot_onednn_is_faster() {
#if defined(__x86_64__)
  __builtin_cpu_init();
  return __builtin_cpu_supports("avx512f") && !__builtin_cpu_is("intel");
#else
  return false;
#endif
}

// Takes effect until the process exits. `installed` is false if this libtorch has no
// usable oneDNN.
int32_t surefoot_use_onednn(bool* installed) {
  return surefoot::guarded([&] {
    static std::mutex mutex;
    static torch::Library* library = nullptr; // never destroyed: products may still be computed at exit
    const std::lock_guard<std::mutex> lock(mutex);
    *installed = library != nullptr;
    if (*installed) {
      return;
    }
    onednn_multiply = find_onednn();
    if (onednn_multiply == nullptr) {
      return;
    }
    Quiet quiet;
    const c10::WarningUtils::WarningHandlerGuard silence(&quiet);
    auto fresh = std::make_unique<torch::Library>(
        torch::Library::IMPL, "aten", std::make_optional(c10::DispatchKey::CPU), __FILE__, __LINE__);
    fresh->impl("mm", mm);
    fresh->impl("mm.out", mm_out);
    fresh->impl("bmm", bmm);
    fresh->impl("bmm.out", bmm_out);
    fresh->impl("addmm", addmm);
    fresh->impl("addmm_", addmm_in_place);
    fresh->impl("baddbmm", baddbmm);
    fresh->impl("baddbmm_", baddbmm_in_place);
    library = fresh.release();
    *installed = true;
  });
}

// The number of products that oneDNN has computed this way.
uint64_t surefoot_onednn_products() {
  return taken.load(std::memory_order_relaxed);
}
}
