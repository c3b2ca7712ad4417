#include <ATen/core/Tensor.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include "ops.h"

namespace {

constexpr int kThreads = 256;

template <typename T>
__global__ void rms_norm_kernel(T* __restrict__ out, const T* __restrict__ input,
                                const T* __restrict__ weight, float epsilon, int width) {
  __shared__ float partial[kThreads / 32];
  __shared__ float scale;
  const int64_t row = blockIdx.x;
  float sum = 0.0f;
  for (int i = threadIdx.x; i < width; i += kThreads) {
    const float x = static_cast<float>(input[row * width + i]);
    sum += x * x;
  }
  for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
  if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = sum;
  __syncthreads();
  if (threadIdx.x == 0) {
    float total = 0.0f;
    for (float each : partial) total += each;
    scale = rsqrtf(total / static_cast<float>(width) + epsilon);
  }
  __syncthreads();
  for (int i = threadIdx.x; i < width; i += kThreads) {
    const float x = static_cast<float>(input[row * width + i]);
    out[row * width + i] = static_cast<T>(x * scale * static_cast<float>(weight[i]));
  }
}

template <typename T>
void launch(at::Tensor& out, const at::Tensor& input, const at::Tensor& weight, double epsilon) {
  const int width = static_cast<int>(input.size(-1));
  const int64_t rows = width == 0 ? 0 : input.numel() / width;
  if (rows == 0) return;
  rms_norm_kernel<T><<<rows, kThreads, 0, c10::cuda::getCurrentCUDAStream()>>>(
      out.mutable_data_ptr<T>(), input.const_data_ptr<T>(), weight.const_data_ptr<T>(),
      static_cast<float>(epsilon), width);
  C10_CUDA_KERNEL_LAUNCH_CHECK();
}

}  // namespace

void rms_norm(at::Tensor& out, const at::Tensor& input, const at::Tensor& weight, double epsilon) {
  TORCH_CHECK(out.sizes() == input.sizes(), "out and input differ in shape");
  TORCH_CHECK(weight.dim() == 1 && weight.size(0) == input.size(-1), "weight has a wrong shape");
  TORCH_CHECK(out.is_contiguous() && input.is_contiguous() && weight.is_contiguous(),
              "tensors must be contiguous");
  TORCH_CHECK(out.scalar_type() == input.scalar_type() &&
                  weight.scalar_type() == input.scalar_type(),
              "dtypes differ");
  const c10::cuda::CUDAGuard guard(input.device());
  switch (input.scalar_type()) {
    case at::ScalarType::Float: return launch<float>(out, input, weight, epsilon);
    case at::ScalarType::Half: return launch<c10::Half>(out, input, weight, epsilon);
    case at::ScalarType::BFloat16: return launch<c10::BFloat16>(out, input, weight, epsilon);
    default: TORCH_CHECK(false, "rms_norm: dtype ", input.scalar_type(), " is not offered");
  }
}
