// What tch 0.26 calls of libtorch and PyTorch 2.15 has no more: `cholesky` and `qr`, deprecated since 1.8, by the
// functions of `linalg` that took their place. Compilers are told to read this first (`-include`), whatever they
// compile; it is for torch-sys alone, which sets this macro.
#if defined(__cplusplus) && defined(GLOG_USE_GLOG_EXPORT)
#pragma once

#include <tuple>

#include <ATen/ATen.h>

namespace torch {

inline at::Tensor cholesky(const at::Tensor& self, bool upper) {
    return at::linalg_cholesky(self, upper);
}

inline at::Tensor& cholesky_out(at::Tensor& out, const at::Tensor& self, bool upper) {
    return at::linalg_cholesky_out(out, self, upper);
}

inline std::tuple<at::Tensor, at::Tensor> qr(const at::Tensor& self, bool some) {
    return at::linalg_qr(self, some ? "reduced" : "complete");
}

inline std::tuple<at::Tensor&, at::Tensor&> qr_out(
    at::Tensor& q, at::Tensor& r, const at::Tensor& self, bool some) {
    return at::linalg_qr_out(q, r, self, some ? "reduced" : "complete");
}

}  // namespace torch

#endif
