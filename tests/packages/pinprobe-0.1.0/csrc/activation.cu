#include <ATen/core/Tensor.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include "ops.h"

namespace {

template <typename T>
__global__ void silu_and_mul_kernel(T* __restrict__ out, const T* __restrict__ input, int width) {
  const int64_t row = blockIdx.x;
  const T* gate = input + row * 2 * width;
  const T* up = gate + width;
  for (int i = threadIdx.x; i < width; i += blockDim.x) {
    const float x = static_cast<float>(gate[i]);
    out[row * width + i] = static_cast<T>(x / (1.0f + expf(-x)) * static_cast<float>(up[i]));
  }
}

template <typename T>
void launch(at::Tensor& out, const at::Tensor& input) {
  const int width = static_cast<int>(out.size(-1));
  const int64_t rows = width == 0 ? 0 : out.numel() / width;
  if (rows == 0) return;
  silu_and_mul_kernel<T><<<rows, width < 1024 ? width : 1024, 0, c10::cuda::getCurrentCUDAStream()>>>(
      out.mutable_data_ptr<T>(), input.const_data_ptr<T>(), width);
  C10_CUDA_KERNEL_LAUNCH_CHECK();
}

}  // namespace

void silu_and_mul(at::Tensor& out, const at::Tensor& input) {
  TORCH_CHECK(input.size(-1) == 2 * out.size(-1), "input must be twice as wide as out");
  TORCH_CHECK(out.is_contiguous() && input.is_contiguous(), "tensors must be contiguous");
  TORCH_CHECK(out.scalar_type() == input.scalar_type(), "dtypes differ");
  const c10::cuda::CUDAGuard guard(input.device());
  switch (input.scalar_type()) {
    case at::ScalarType::Float: return launch<float>(out, input);
    case at::ScalarType::Half: return launch<c10::Half>(out, input);
    case at::ScalarType::BFloat16: return launch<c10::BFloat16>(out, input);
    default: TORCH_CHECK(false, "silu_and_mul: dtype ", input.scalar_type(), " is not offered");
  }
}
