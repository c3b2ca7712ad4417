// Light on purpose: CUDA's own headers only, so this source compiles in seconds.
#include <cuda_fp16.h>

#include "rotate.h"

namespace {

__global__ void rotate_half_kernel(__half* __restrict__ data, const int64_t* __restrict__ positions,
                                   int half, float base) {
  const int64_t row = blockIdx.x;
  __half* x = data + row * 2 * half;
  for (int i = threadIdx.x; i < half; i += blockDim.x) {
    const float power = powf(base, -static_cast<float>(i) / static_cast<float>(half));
    float sine, cosine;
    sincosf(static_cast<float>(positions[row]) * power, &sine, &cosine);
    const float a = __half2float(x[i]);
    const float b = __half2float(x[i + half]);
    x[i] = __float2half(a * cosine - b * sine);
    x[i + half] = __float2half(a * sine + b * cosine);
  }
}

}  // namespace

cudaError_t launch_rotate_half(void* data, const int64_t* positions, int64_t rows, int half,
                               float base, cudaStream_t stream) {
  if (rows == 0 || half == 0) return cudaSuccess;
  rotate_half_kernel<<<rows, half < 1024 ? half : 1024, 0, stream>>>(static_cast<__half*>(data),
                                                                     positions, half, base);
  return cudaGetLastError();
}
