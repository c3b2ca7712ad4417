#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda.h>
#include <torch/library.h>

#include "ops.h"
#include "registration.h"
#include "rotate.h"

// TORCH_LIBRARY takes its namespace literally; these let it be a macro.
#define PINPROBE_LIBRARY(name, module) TORCH_LIBRARY(name, module)
#define PINPROBE_LIBRARY_IMPL(name, key, module) TORCH_LIBRARY_IMPL(name, key, module)

static void rotate_half(at::Tensor& data, const at::Tensor& positions, double base) {
  TORCH_CHECK(data.dim() == 2 && data.is_contiguous() && data.size(1) % 2 == 0,
              "data must be a contiguous matrix of even width");
  TORCH_CHECK(data.scalar_type() == at::ScalarType::Half, "data must be float16");
  TORCH_CHECK(positions.scalar_type() == at::ScalarType::Long && positions.is_contiguous() &&
                  positions.numel() == data.size(0),
              "positions must hold one int64 for each row");
  const c10::cuda::CUDAGuard guard(data.device());
  C10_CUDA_CHECK(launch_rotate_half(data.mutable_data_ptr(), positions.const_data_ptr<int64_t>(),
                                    data.size(0), static_cast<int>(data.size(1) / 2),
                                    static_cast<float>(base), c10::cuda::getCurrentCUDAStream()));
}

// The newest CUDA version the driver serves (13000 for 13.0); asks libcuda.so.1 itself.
static int64_t driver_version() {
  int version = 0;
  TORCH_CHECK(cuDriverGetVersion(&version) == CUDA_SUCCESS, "the CUDA driver gives no version");
  return version;
}

PINPROBE_LIBRARY(TORCH_EXTENSION_NAME, ops) {
  ops.def("driver_version() -> int", &driver_version);
  ops.def("silu_and_mul(Tensor! out, Tensor input) -> ()");
  ops.def("rms_norm(Tensor! out, Tensor input, Tensor weight, float epsilon) -> ()");
  ops.def("rotate_half(Tensor! data, Tensor positions, float base) -> ()");
}

PINPROBE_LIBRARY_IMPL(TORCH_EXTENSION_NAME, CUDA, ops) {
  ops.impl("silu_and_mul", &silu_and_mul);
  ops.impl("rms_norm", &rms_norm);
  ops.impl("rotate_half", &rotate_half);
}

PINPROBE_IMPORTABLE(_C)
