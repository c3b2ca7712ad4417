#include "stable/scale.h"

namespace {

__global__ void scale_kernel(float* __restrict__ out, const float* __restrict__ input,
                             int64_t count, float factor) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i < count) out[i] = input[i] * factor;
}

}  // namespace

cudaError_t launch_scale(float* out, const float* input, int64_t count, float factor,
                         cudaStream_t stream) {
  if (count == 0) return cudaSuccess;
  constexpr int threads = 256;
  scale_kernel<<<(count + threads - 1) / threads, threads, 0, stream>>>(out, input, count, factor);
  return cudaGetLastError();
}
